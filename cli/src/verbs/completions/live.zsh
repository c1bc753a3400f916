# Completes current session ids and tags by `foldlog candidates`. `compadd` quotes inserted words, and evaluates none of them.
_foldlog_sessions_now() {
    local typed=${(Q)PREFIX} store base
    store=${typed/#\~\//$HOME/}
    case $store in
        */sessions/*|sessions/*) store=${store%sessions/*} base=${typed%sessions/*}sessions/ ;;
        *) base=${typed:+${typed%/}/}sessions/ ;;
    esac
    local -a found
    [[ -d ${store:-.}/sessions ]] && found=("${(@f)$(command foldlog candidates sessions -- "${store:-.}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then
        compadd -- $base$^found
    else
        _files
    fi
}
_foldlog_tags_now() {
    local word session= skips= first=1
    for word in "${(@)words[2,CURRENT-1]}"; do
        if [[ -n $skips ]]; then
            skips=
        elif [[ $word == -* ]]; then
            [[ $_foldlog_valued == *" $word "* ]] && skips=1
        else
            session=${(Q)word}
            break
        fi
    done
    local -a found
    [[ -n $session ]] && found=("${(@f)$(command foldlog candidates tags -- "${session/#\~\//$HOME/}" 2>/dev/null)}")
    found=(${found:#})
    compadd -- $found
}

