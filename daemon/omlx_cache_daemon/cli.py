"""`omlx-cache`: parses the command line and runs one command.

Only the chosen command's module is imported, and none may import MLX before it needs it. The
overview and the version import no module of a command.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from omlx_cache import __version__
from omlx_cache.settings.names import ConfigError, refusal
from omlx_cache_daemon.errors import (
    BAD_CONFIGURATION,
    BROKEN_PIPE,
    FAILURE,
    INTERRUPTED,
    OK,
    CommandError,
    UsageError,
)
from omlx_cache_storage.errors import CacheError

GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Serve, and fill the cache": {
        "serve": "serve a model, OpenAI-compatible, with this cache",
        "run": "run another server with this cache in place of its own",
        "warm": "prefill prompts that a server restores later",
    },
    "See what it does": {
        "ps": "list the running stores, or watch them",
        "stats": "show a store's counters, memory and disk",
        "log": "show requests as they end, and what happens to pages",
        "why": "show why no more of a prompt was restored",
    },
    "Look after the directory": {
        "ls": "list namespaces, the pages of a namespace, or one page",
        "rm": "delete namespaces, or pages that are stale, old or too many",
        "quota": "show or change a directory's budget and pins",
        "export": "write pages into one archive for another machine",
        "import": "read the pages of an archive that export wrote",
        "doctor": "find problems, and with --fix mend those that are safe to mend",
        "config": "show each setting and where it came from",
    },
    "Measure and plan": {
        "bench": "measure restores and commits beside this machine's limits",
        "demo": "show what is restored from memory, from SSD and after a restart",
        "size": "compute a model's KV memory",
        "simulate": "replay a trace through tiers of other sizes",
    },
}

OLD_NAMES: Final[Mapping[str, str]] = {
    "bench-kv": "bench kv",
    "completion": "config --completion SHELL",
    "events": "log --events",
    "inspect": "ls NAMESPACE/KEY",
    "monitor": "log --follow",
    "move": "export -o - | omlx-cache import - --cold-dir NEW_DIR",
    "pin": "quota --pin TARGET",
    "ping": "ps",
    "prune": "rm --stale, --older PERIOD or --to SIZE",
    "schema": "config --schema NAME",
    "top": "ps --watch",
    "unpin": "quota --unpin TARGET",
    "verify": "doctor --all",
}
"""Names that commands had, and what does their work now."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; --help of a command raises SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "_ARGCOMPLETE" in os.environ:
        from omlx_cache_daemon.parsing import complete

        complete({name: about for group in GROUPS.values() for name, about in group.items()})
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # A terminal of another encoding gets a question mark where it has no character. A pipe that
        # was a file when Python started cannot be asked for its place.
        with contextlib.suppress(OSError):
            reconfigure(errors="replace")
    return _guarded(lambda: _run(arguments))


def command_names() -> list[str]:
    return [name for commands in GROUPS.values() for name in commands]


def _run(arguments: Sequence[str]) -> int:
    while arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        return _print(_overview())
    if name == "--version":
        return _print(f"omlx-cache {__version__}")
    if name not in command_names():
        if name in OLD_NAMES:
            raise UsageError(f"omlx-cache {name} is now omlx-cache {OLD_NAMES[name]}")
        known = [*command_names(), "help", "--help", "--version"]
        kind = "flag" if name.startswith("-") else "command"
        ends = "; Ctrl-C or SIGTERM ends serve" if name == "stop" else "; see omlx-cache --help"
        raise UsageError(refusal(kind, name, known, ends))
    # Only here: argparse takes as long to import as all of this.
    from omlx_cache_daemon.parsing import parse

    args = parse(arguments)
    code: int = args.run(args)
    return code


def _overview() -> str:
    width = max(map(len, command_names()))
    parts = [
        "usage: omlx-cache [-h] [--version] COMMAND ...",
        "Caches the prefixes of prompts. Every COMMAND has --help.",
    ]
    for title, commands in GROUPS.items():
        rows = [f"  {name:<{width}}  {about}" for name, about in commands.items()]
        parts.append("\n".join([f"{title}:", *rows]))
    ends = "Exit codes: 0 done, 1 failure, 2 usage, 69 no store answers, 78 bad configuration."
    return "\n\n".join([*parts, ends])


def _print(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    return OK


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
    from omlx_cache_daemon.render import lines

    if isinstance(error, OSError) and error.strerror:
        error = CommandError(
            ": ".join(str(said) for said in (error.filename, error.strerror) if said)
        )
    sys.stderr.write(f"omlx-cache: {lines(error)}\n")
    return code
