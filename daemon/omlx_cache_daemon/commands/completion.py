"""`omlx-cache completion`: a script that completes words in a shell."""

import argparse
import sys
from importlib import import_module
from pkgutil import iter_modules

from omlx_cache_daemon import commands
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
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    for module in iter_modules(commands.__path__):
        import_module(f"{commands.__name__}.{module.name}").add_parser(subparsers)
    sys.stdout.write(_SCRIPTS[args.shell](commands_of(parser)))
    return OK
