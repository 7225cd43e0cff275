"""A completion script for bash, 3.2 (of macOS) and later."""

from collections.abc import Sequence

from omlx_cache_daemon.completion.words import Command, Value

_BEGIN = """\
# bash completion for omlx-cache: source this file, or put it where bash-completion looks.
_omlx_cache_files() {
    # Names of files may have spaces; compopt is not in bash 3.2.
    local IFS=$'\\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$1"))
}
_omlx_cache_words() {
    COMPREPLY=($(compgen -W "$2" -- "$1"))
}
_omlx_cache() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"
    # bash makes three words of --flag=value.
    if [ "$cur" = "=" ]; then
        cur=""
    elif [ "$prev" = "=" ]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
"""
_END = """\
    esac
}
complete -F _omlx_cache omlx-cache
"""


def script(commands: Sequence[Command]) -> str:
    """Return the script."""
    names = " ".join([*(command.name for command in commands), "--help", "--version"])
    parts = [
        _BEGIN,
        f'        _omlx_cache_words "$cur" "{names}"\n        return\n    fi\n',
        '    case "${COMP_WORDS[1]}" in\n',
        *map(_case, commands),
        _END,
    ]
    return "".join(parts)


def _case(command: Command) -> str:
    lines = [f"    {command.name})", '        case "$prev" in']
    for flag in command.flags:
        if flag.value is not None and not flag.value.optional:
            lines.append(f"        {'|'.join(flag.names)}) {_offer(flag.value)}return ;;")
    lines.append("        esac")
    flags = " ".join(name for flag in command.flags for name in flag.names)
    words = command.words
    choices = " ".join(words.choices) if words is not None else ""
    lines.append(f'        case "$cur" in -*) _omlx_cache_words "$cur" "{flags}"; return ;; esac')
    if words is not None and words.is_path:
        lines.append('        _omlx_cache_files "$cur" ;;')
    else:
        lines.append(f'        _omlx_cache_words "$cur" "{choices or flags}" ;;')
    return "\n".join(lines) + "\n"


def _offer(value: Value) -> str:
    if value.choices:
        return f'_omlx_cache_words "$cur" "{" ".join(value.choices)}"; '
    return '_omlx_cache_files "$cur"; ' if value.is_path else ""
