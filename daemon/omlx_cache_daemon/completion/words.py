"""What can be completed of each command: its flags, their values, and what stands alone."""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PATH = re.compile(r"\b(FILE|DIR|PATH|PATH_OR_ID|NEW_DIR|ARCHIVE|TRACE)\b")
_SHOWN_CHARACTERS = 72


@dataclass(frozen=True, slots=True)
class Value:
    """What comes behind a flag, or alone: one of `choices`, the name of a file, or anything."""

    choices: tuple[str, ...] = ()
    is_path: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag with its spellings; without a value it is complete by itself."""

    names: tuple[str, ...]
    about: str
    value: Value | None


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its flags, and the first of what stands alone."""

    name: str
    about: str
    flags: tuple[Flag, ...]
    words: Value | None


def commands_of(parser: argparse.ArgumentParser) -> list[Command]:
    """Return the commands of a parser in the order in which its help shows them."""
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    about = {action.dest: action.help or "" for action in subparsers._choices_actions}
    return [
        Command(name, _short(about.get(name, "")), tuple(_flags(one)), _alone(one))
        for name, one in subparsers.choices.items()
    ]


def _flags(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.option_strings and action.help is not argparse.SUPPRESS:
            about = formatter._expand_help(action) if action.help else ""
            value = None if action.nargs == 0 else _value(action)
            yield Flag(tuple(action.option_strings), _short(about), value)


def _alone(parser: argparse.ArgumentParser) -> Value | None:
    """Return what stands alone; of several the one that can be completed."""
    found = [_value(action) for action in parser._actions if not action.option_strings]
    return next((one for one in found if one.choices or one.is_path), found[0] if found else None)


def _value(action: argparse.Action) -> Value:
    choices: Sequence[object] = tuple(action.choices or ())
    named = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return Value(
        tuple(map(str, choices)),
        action.type is Path or bool(_PATH.search(named)),
        action.nargs in ("?", "*"),
    )


def _short(about: str) -> str:
    """Return the beginning of a help text in one line, printable and without quotes."""
    line = " ".join(about.split()).replace("'", "").replace('"', "").replace("`", "")
    if len(line) <= _SHOWN_CHARACTERS:
        return line
    return line[: line.rfind(" ", 0, _SHOWN_CHARACTERS)] + " ..."
