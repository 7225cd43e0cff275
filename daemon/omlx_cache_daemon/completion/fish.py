"""A completion script for fish."""

from collections.abc import Iterator, Sequence

from omlx_cache_daemon.completion.words import Command, Flag, Value

_BEGIN = """\
# fish completion for omlx-cache: as omlx-cache.fish in ~/.config/fish/completions.
complete -c omlx-cache -f
complete -c omlx-cache -n __fish_use_subcommand -l help -d 'show this help'
complete -c omlx-cache -n __fish_use_subcommand -l version -d 'show the version'
"""


def script(commands: Sequence[Command]) -> str:
    """Return the script."""
    lines = [line for command in commands for line in _lines(command)]
    return _BEGIN + "".join(f"complete -c omlx-cache {line}\n" for line in lines)


def _lines(command: Command) -> Iterator[str]:
    yield f"-n __fish_use_subcommand -a {command.name} -d '{command.about}'"
    chosen = f"-n '__fish_seen_subcommand_from {command.name}'"
    for flag in command.flags:
        yield f"{chosen} {_flag(flag)} -d '{flag.about}'"
    words = command.words
    if words is not None and words.choices:
        yield f"{chosen} -a '{' '.join(words.choices)}'"
    elif words is not None and words.is_path:
        yield f"{chosen} -F"


def _flag(flag: Flag) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
    return " ".join([*names, *_takes(flag.value)])


def _takes(value: Value | None) -> list[str]:
    if value is None or value.optional:
        return []
    if value.choices:
        return [f"-x -a '{' '.join(value.choices)}'"]
    return ["-r -F"] if value.is_path else ["-x"]
