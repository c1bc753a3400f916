
# Completes current session ids and tags by `foldlog candidates`. Words from a store are quoted and never evaluated.
_foldlog_live() {
    COMPREPLY=()
    local -a words=()
    local i word joins=
    # bash breaks words at `=` and `:`. Here they are joined again.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ -z $word && ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]]; then
            joins=
        fi
        if [[ ${#words[@]} -gt 1 && ( -n $joins || $word == [=:]* ) ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        joins=
        [[ $word == *[=:] ]] && joins=1
    done
    local cur=${words[${#words[@]} - 1]} verb= store= kind= path= base= option= value=
    local -a given=()
    for ((i = 1; i < ${#words[@]} - 1; i++)); do
        word=${words[i]}
        option=
        case $word in
            --*=*) ;;
            -*)
                # An option and its value. If the value is being typed, the loop ends after the last word.
                if [[ $_foldlog_valued == *" $word "* ]]; then
                    option=$word
                    ((i++))
                fi
                ;;
            *)
                # The words of a name are joined by `-`.
                if [[ -z $verb || $_foldlog_groups == *" $verb "* ]]; then
                    verb+=${verb:+-}$word
                else
                    given+=("$word")
                fi
                ;;
        esac
    done
    # If the loop has passed the last word, the value of `option` is being typed.
    ((i < ${#words[@]})) && option=
    # Quoted and expanded words are left to the standard completion.
    if [[ -z $verb || $cur == *[\'\"\$\`]* ]]; then
        _foldlog "$@"
        return
    fi
    value=$cur
    if [[ $cur == --*=* ]]; then
        option=${cur%%=*} value=${cur#*=} base=${cur%%=*}=
    fi
    # The word of bash begins after the last break; the part before it is already on the command line.
    local stands=${cur%"${cur##*[=:]}"}
    value=${value//\\/}
    path=${given[0]//\\/}
    if [[ $option == --at || ( $option == --tag && $verb == sessions ) ]]; then
        kind=tags
    elif [[ -n $option || $cur == -* ]]; then
        :
    elif [[ ( $verb == diff && ( ${#given[@]} == 1 || ${#given[@]} == 2 ) ) || ( $verb == rewind && ${#given[@]} == 1 ) ]]; then
        kind=tags
    elif [[ $_foldlog_sessions == *" $verb "* && ( ${#given[@]} == 0 || $verb == verify ) ]]; then
        case $value in
            */sessions/* | sessions/*)
                path=${value%sessions/*} base=${path}sessions/ value=${value##*sessions/} kind=sessions
                path=${path:-.}
                ;;
            *)
                path=${value:-.}
                if [[ -d ${path/#'~/'/$HOME/}/sessions ]]; then
                    base=${value:+${value%/}/}sessions/ value= kind=sessions
                fi
                ;;
        esac
    fi
    if [[ -n $kind && -n $path ]]; then
        local candidate quoted
        while IFS= read -r candidate; do
            [[ $candidate == "$value"* ]] || continue
            candidate=$base$candidate
            case $candidate in
                '~/'*) printf -v quoted '~/%q' "${candidate:2}" ;;
                *) printf -v quoted %q "$candidate" ;;
            esac
            [[ $quoted == "$stands"* ]] && COMPREPLY+=("${quoted:${#stands}}")
        done < <("${1/#'~/'/$HOME/}" candidates "$kind" -- "${path/#'~/'/$HOME/}" "$value" 2> /dev/null)
    fi
    [[ ${#COMPREPLY[@]} -gt 0 ]] || _foldlog "$@"
}

complete -F _foldlog_live -o bashdefault -o default foldlog
