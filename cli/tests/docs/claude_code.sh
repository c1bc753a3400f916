# Kills a run of Claude Code within a `Bash` call that has damaged a file. A stand-in plays the
# program, also when the run is resumed: the argument names it. See `tests/src/bin/claude-stand-in`.
set -e
mkdir bin project
echo 'good evening' > project/notes.txt
echo 'Add a greeting to notes.txt, and run the tests.' > task.md
cat > bin/claude << END
#!/bin/sh
STAND_IN_SCRIPT=$HOME/script exec "$(command -v "$1")" "\$@"
END
chmod +x bin/claude
cat > script << 'END'
{"turn":true}
{"native":"Read","input":{"file_path":"notes.txt"},"output":"good evening","id":"toolu_1"}
{"native":"Edit","input":{"file_path":"notes.txt","old_string":"evening","new_string":"morning"},"write":{"notes.txt":"good morning\n"},"output":"edited","id":"toolu_2"}
{"native":"Bash","input":{"command":"echo broken > notes.txt; sleep 60"},"write":{"notes.txt":"broken\n"},"gate":"never","id":"toolu_3"}
END
foldlog run --adapter claude --tool Read,Edit,Bash --prompt task.md --workspace project --store runs > run.txt 2>&1 &
run=$!
until [[ $(< project/notes.txt) == broken ]]; do kill -0 $run || { cat run.txt; exit 1; }; read -rt 0.05 <> <(:) || true; done
kill -9 $run
wait $run || true
cat > script << 'END'
{"turn":true}
{"native":"Bash","input":{"command":"grep -c morning notes.txt","description":"tests"},"output":"1","id":"toolu_4"}
{"text":"notes.txt says good morning, and the test passes."}
{"result":"notes.txt says good morning, and the test passes."}
END
