"""A completion script for zsh."""

from collections.abc import Sequence

from omlx_cache_daemon.completion.words import Command, Flag, Value

_BEGIN = """\
#compdef omlx-cache
# zsh completion for omlx-cache: as _omlx-cache in a directory of $fpath, or sourced after compinit.
_omlx_cache() {
    if (( CURRENT == 2 )); then
        local -a commands
        commands=(
"""
_MIDDLE = """\
        )
        _describe command commands
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in
"""
_END = """\
    esac
}
if [ "$funcstack[1]" = "_omlx-cache" ]; then
    _omlx_cache "$@"
else
    compdef _omlx_cache omlx-cache
fi
"""


def script(commands: Sequence[Command]) -> str:
    """Return the script."""
    named = [f"            '{one.name}:{_plain(one.about)}'\n" for one in commands]
    return "".join([_BEGIN, *named, _MIDDLE, *map(_case, commands), _END])


def _case(command: Command) -> str:
    specs = [spec for flag in command.flags for spec in _specs(flag)]
    if command.words is not None:
        specs.append(f"'*:word:{_action(command.words)}'")
    lines = " \\\n            ".join(specs)
    return f"    {command.name})\n        _arguments \\\n            {lines} ;;\n"


def _specs(flag: Flag) -> list[str]:
    about = f"[{_plain(flag.about)}]"
    if flag.value is None:
        return [f"'{name}{about}'" for name in flag.names]
    optional = ":" if flag.value.optional else ""
    return [
        f"'{name}{'=' if name.startswith('--') else '+'}{about}:{optional}value:"
        f"{_action(flag.value)}'"
        for name in flag.names
    ]


def _action(value: Value) -> str:
    if value.choices:
        return f"({' '.join(value.choices)})"
    return "_files" if value.is_path else " "


def _plain(about: str) -> str:
    """Return a text without what means something in a specification."""
    return about.replace("[", "(").replace("]", ")").replace(":", " -").replace("\\", "")
