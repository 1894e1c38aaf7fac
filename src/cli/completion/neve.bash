# bash completion for neve(1)

_neve()
{
    local cur prev verb i
    COMPREPLY=()
    cur=${COMP_WORDS[COMP_CWORD]}
    prev=${COMP_WORDS[COMP_CWORD-1]}
    verb=
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} != -* ]]; then
            verb=${COMP_WORDS[i]}
            break
        fi
    done
    if [[ -z $verb ]]; then
        COMPREPLY=($(compgen -W "ls inspect verify diff stats convert cp recover gc doctor -h --help --version" -- "$cur"))
        return
    fi
    case $verb:$prev in
        convert:--to) COMPREPLY=($(compgen -W "pt safetensors hf dcp step npz" -- "$cur")); return ;;
        recover:--to) COMPREPLY=($(compgen -d -- "$cur")); compopt -o filenames 2>/dev/null; return ;;
        *:--step | *:--rank | *:--keep | *:--drop | *:--shard-size) return ;;
    esac
    if [[ $cur == -* ]]; then
        local options="--json --quiet -q --help -h --version"
        case $verb in
            inspect) options+=" --step --rank --tree --lenient" ;;
            verify) options+=" --step --rank" ;;
            cp) options+=" --step" ;;
            diff | stats) options+=" --step --rank --lenient" ;;
            convert) options+=" --to --shard-size --step --rank --tree --drop --lenient" ;;
            recover) options+=" --to --adopt --dry-run -n" ;;
            gc) options+=" --keep --dry-run -n" ;;
        esac
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
        return
    fi
    [[ $verb == doctor ]] && return
    # Places are files and folders; `ram:` is offered by name. A colon breaks words in bash, so nothing more is.
    COMPREPLY=($(compgen -f -- "$cur") $(compgen -W "ram: file:" -- "$cur"))
    compopt -o filenames 2>/dev/null
}

complete -F _neve neve
