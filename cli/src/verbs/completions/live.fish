
# Completes current session ids and tags by `foldlog candidates`. fish quotes inserted words, and evaluates none of them.
function __foldlog_given
    set -l words (commandline -opc)
    set -l skips 0
    set -l verb
    for word in $words[2..-1]
        if test $skips = 1
            set skips 0
        else if contains -- $word $__foldlog_valued
            set skips 1
        else if not string match -q -- '-*' $word
            # The words of a name are joined by `-`.
            if contains -- "$verb" '' $__foldlog_groups
                set verb (string join -- - $verb $word)
            else
                set -a verb $word
            end
        end
    end
    string join -- \n $verb
end

function __foldlog_is_position
    set -l given (__foldlog_given)
    test (count $given) -ge 2; or return 1
    contains -- $given[1] diff; and test (count $given) -le 3; and return 0
    contains -- $given[1] rewind; and test (count $given) -eq 2
end

function __foldlog_is_session
    set -l given (__foldlog_given)
    test (count $given) -eq 1; and contains -- $given[1] $__foldlog_sessions
end

function __foldlog_is_at
    set -l given (__foldlog_given)
    test (count $given) -ge 1; and contains -- $given[1] $__foldlog_at
end

function __foldlog_sessions_now
    set -l typed (commandline -ct | string unescape | string replace -r '^~/' "$HOME/")
    set -l store (string replace -r '(^|/)sessions/[^/]*$' '$1' -- $typed)
    test -n "$store"; or set store .
    test -d $store/sessions; or return
    set -l base (test $store = .; and echo sessions; or echo (string trim -r -c / -- $store)/sessions)
    foldlog candidates sessions -- $store 2>/dev/null | string replace -r '^' $base/
end

function __foldlog_tags_now
    set -l given (__foldlog_given)
    test (count $given) -ge 2; and foldlog candidates tags -- (string replace -r '^~/' "$HOME/" -- $given[2]) 2>/dev/null
end

complete -c foldlog -n __foldlog_is_session -f -a '(__foldlog_sessions_now)'
complete -c foldlog -n __foldlog_is_position -f -a '(__foldlog_tags_now)'
complete -c foldlog -n __foldlog_is_at -l at -x -a '(__foldlog_tags_now)'
complete -c foldlog -n '__fish_foldlog_using_subcommand sessions' -l tag -x -a '(__foldlog_tags_now)'
