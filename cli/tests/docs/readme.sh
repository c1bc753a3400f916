# Records the calls that the README shows.
. "$PAGE_SCRIPTS/calls.sh"
mkdir notes src
echo 'Ask Ada.' > notes/today.md
printf 'fn zones() {}\n\nfn main() {}\n' > src/zones.rs
shell='rm -r notes && sed -i s/zones/areas/ src/*.rs'
call Write plan.md 'echo "1. Rename" > plan.md'
call Bash "$shell" "$shell"
call Edit src/zones.rs 'echo "// Checked." >> src/zones.rs'
