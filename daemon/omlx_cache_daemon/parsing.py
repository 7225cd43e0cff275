"""The command line of one command: what its module says that it takes."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

from omlx_cache.settings.names import SETTING_NAMES, refusal, refuse_unknown
from omlx_cache_daemon.errors import UsageError

_SERVE = ("run", "serve")


class OneLineParser(argparse.ArgumentParser):
    """Complains in one line: the usage of a command with fifty flags would hide it. Takes flags by
    their whole names: a shorter one would change its meaning with the next flag that there is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if re.match(r"unrecognized arguments: -\d", message):
            # Such a word passes for a flag.
            message += ": sizes and numbers are not negative"
        raise UsageError(f"{message}; see {self.prog} --help")


def load(
    name: str, subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]"
) -> argparse.ArgumentParser:
    """Import the module of a command and return its parser; a command that shows something takes
    --format."""
    command = import_module(f"omlx_cache_daemon.commands.{name}")
    command.add_parser(subparsers)
    parser = subparsers.choices[name]
    if name not in _SERVE:
        parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(run=command.run)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line, whose `run` does the command. Raises UsageError, ConfigError
    for a misspelt variable, and SystemExit for --help."""
    whole: argparse.ArgumentParser = OneLineParser(prog="omlx-cache")
    parser = load(arguments[0], whole.add_subparsers(prog="omlx-cache", dest="command"))
    # First, since the value behind an unknown flag would be taken for a positional argument.
    _refuse_unknown_flags(parser, arguments)
    args = parser.parse_args(arguments[1:])
    args.words = arguments[1:]
    if not getattr(args, "examines_variables", False):
        # Here for every command: one that needs no setting would not notice a misspelt name.
        refuse_unknown(SETTING_NAMES, (), os.environ)
    return args


def complete(helps: Mapping[str, str]) -> None:
    """Answer a shell that asks which words may stand at its cursor, and leave. `helps` has what
    each command does."""
    import argcomplete

    named = os.environ.get("COMP_LINE", "").split()[1:2]
    parser = argparse.ArgumentParser(prog="omlx-cache")
    parser.add_argument("--version", action="store_true")
    subparsers = parser.add_subparsers()
    for name, about in helps.items():
        if [name] == named:
            load(name, subparsers)
        else:
            subparsers.add_parser(name, help=about)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _refuse_unknown_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    if parser.get_default("passes_on"):
        # Arguments behind the second word that is no flag belong to the command of that name.
        words = [at for at, word in enumerate(arguments) if not word.startswith("-")]
        arguments = arguments[: words[1] + 1] if len(words) > 1 else arguments
    for word in takewhile(lambda word: word != "--", arguments):
        flag = word.partition("=")[0]
        # A text with a space in it is a value, whatever it begins with.
        is_flag = flag.startswith("--") and " " not in flag
        if is_flag and flag not in parser._option_string_actions:
            known = re.findall(r"--[a-z][a-z-]*", parser.format_help())
            raise UsageError(refusal("flag", flag, known, f"; see {parser.prog} --help"))
