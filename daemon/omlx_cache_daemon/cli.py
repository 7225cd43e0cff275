"""`omlx-cache`: parses the command line and runs one command.

Only the chosen command's module is imported, and none may import MLX before it needs it:
`omlx-cache ping` answers in a few tens of milliseconds.
"""

import argparse
import contextlib
import io
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn, Protocol, TypeAlias, cast

from omlx_cache import __version__
from omlx_cache.settings.names import REMOVED, SETTING_NAMES, ConfigError, refusal, refuse_unknown
from omlx_cache_daemon import commands
from omlx_cache_daemon.errors import (
    BAD_CONFIGURATION,
    BROKEN_PIPE,
    FAILURE,
    INTERRUPTED,
    CommandError,
    UsageError,
)
from omlx_cache_daemon.overview import overview
from omlx_cache_daemon.render import lines
from omlx_cache_storage.errors import CacheError

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


_ENDS = "Exit codes: 0 done, 1 failure, 2 usage, 69 no store answers, 78 bad configuration."
_REMOVED = {
    "move": "to another disk: mkdir -m 700 NEW_DIR; omlx-cache export -o - | omlx-cache import - "
    "--cold-dir NEW_DIR; then set OMLX_CACHE_COLD_DIR=NEW_DIR and delete the old directory",
}
"""Commands that are gone, and what takes their place."""
_OF_ALL = {"completion"}
"""Commands about all commands: they find the whole parser in their arguments."""


class Command(Protocol):
    """A module of `omlx_cache_daemon.commands`; its file is named for the command."""

    def add_parser(self, subparsers: Subparsers) -> object: ...

    def run(self, args: argparse.Namespace) -> int: ...


class _Parser(argparse.ArgumentParser):
    """Complains in one line: the usage of a command with fifty flags would hide it."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError, with where to read more."""
        raise UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; --help and --version raise SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal of another encoding gets a question mark where it has no character. What was a
        # file when Python started and is a pipe now cannot be asked for its place.
        with contextlib.suppress(OSError):
            sys.stdout.reconfigure(errors="replace")
    return _guarded(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    names = command_names()
    if arguments and arguments[0] in _REMOVED:
        raise UsageError(f"there is no {arguments[0]} any more; {_REMOVED[arguments[0]]}")
    if arguments and not arguments[0].startswith("-") and arguments[0] not in names:
        raise UsageError(refusal("command", arguments[0], names))
    loaded = {name: _load(name) for name in _wanted(arguments)}
    parser: argparse.ArgumentParser = _Parser(
        prog="omlx-cache",
        usage="omlx-cache [-h] [--version] COMMAND ...",
        description="Keeps the prefixes of prompts, and shows what it keeps.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"omlx-cache {__version__}")
    # In the epilog, where they stand in groups.
    subparsers = parser.add_subparsers(
        prog="omlx-cache",
        dest="command",
        metavar="COMMAND",
        required=True,
        help=argparse.SUPPRESS,
    )
    for command in loaded.values():
        command.add_parser(subparsers)
    parser.epilog = f"{overview(_helps(subparsers))}\n\n{_ENDS}"
    if len(loaded) == 1:
        # First, since the value behind an unknown flag would be taken for a positional argument.
        _refuse_unknown_flags(subparsers.choices[next(iter(loaded))], arguments)
    args, rest = parser.parse_known_args(arguments)
    if rest:
        subparsers.choices[args.command].error(f"unrecognized arguments: {' '.join(rest)}")
    if not getattr(args, "examines_variables", False):
        # Here for every command: one that needs no setting would not notice a misspelt name.
        refuse_unknown(SETTING_NAMES, (), os.environ)
    args.parser = parser
    return loaded[args.command].run(args)


def _helps(subparsers: Subparsers) -> dict[str, str]:
    """Return what each command is said to do, by its name."""
    return {action.dest: action.help or "" for action in subparsers._choices_actions}


def _refuse_unknown_flags(command: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Raise UsageError for the first flag that a command does not have, nor one that begins so."""
    known = re.findall(r"--[a-z][a-z-]*", command.format_help())
    removed = [f"--{name.replace('_', '-')}" for name in REMOVED]
    if command.get_default("passes_on"):
        arguments = _own(arguments)
    for word in arguments:
        flag = word.partition("=")[0]
        if word == "--":
            return
        # A text with a space in it is a value, whatever it begins with.
        is_flag = flag.startswith("--") and " " not in flag
        if (
            is_flag
            and flag != "--version"
            and not any(name.startswith(flag) for name in (*known, *removed))
        ):
            raise UsageError(refusal("flag", flag, known))


def _own(arguments: Sequence[str]) -> Sequence[str]:
    """Return the words up to the second that is no flag: what follows is for whom that names."""
    words = [at for at, word in enumerate(arguments) if not word.startswith("-")]
    return arguments[: words[1] + 1] if len(words) > 1 else arguments


def command_names() -> list[str]:
    """Return the commands that are installed."""
    modules = pkgutil.iter_modules(commands.__path__)
    return [m.name.replace("_", "-") for m in modules if not m.name.startswith("_")]


def _wanted(arguments: Sequence[str]) -> list[str]:
    """Return the one command that was named, or all of them for the overview."""
    names = command_names()
    named = next((word for word in arguments if not word.startswith("-")), None)
    return [named] if named in names and named not in _OF_ALL else names


def _load(name: str) -> Command:
    module = import_module(f"{commands.__name__}.{name.replace('-', '_')}")
    return cast(Command, module)


def _guarded(command: Callable[[], int]) -> int:
    """Turn every foreseen end into an exit code and a line on standard error."""
    try:
        try:
            return command()
        finally:
            # Here, where a reader that has gone is foreseen; --help leaves by SystemExit.
            sys.stdout.flush()
    except ConfigError as error:
        return _complain(error, BAD_CONFIGURATION)
    except CommandError as error:
        return _complain(error, error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone. Python would flush once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (CacheError, OSError) as error:
        return _complain(error, FAILURE)


def _complain(error: Exception, code: int) -> int:
    sys.stderr.write(f"omlx-cache: {lines(error)}\n")
    return code
