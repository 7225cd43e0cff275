"""`omlx-cache completion`: a script that completes words in a shell."""

import argparse
import sys

from omlx_cache_daemon.completion import bash, fish, zsh
from omlx_cache_daemon.completion.words import commands_of
from omlx_cache_daemon.errors import OK

_SCRIPTS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes words in bash, zsh or fish",
        description="Prints a script that completes commands, flags, their values and names of "
        "files. It starts no program when a word is completed; print it again after an upgrade. "
        "For bash: source <(omlx-cache completion bash)",
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS))


def run(args: argparse.Namespace) -> int:
    sys.stdout.write(_SCRIPTS[args.shell](commands_of(args.parser)))
    return OK
