"""`omlx-cached`: reads the command line and the configuration, and runs the service."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from omlx_cache import __version__
from omlx_cache.settings import CacheSettings, ConfigError
from omlx_cache.settings.machine import read_secret
from omlx_cache_daemon.errors import BAD_CONFIGURATION, FAILURE, OK, CommandError
from omlx_cache_daemon.render import table, text
from omlx_cache_daemon.service.configuration import (
    NAMES,
    Configuration,
    default_file,
    read_configuration,
    shown,
)
from omlx_cache_daemon.service.logs import show_messages
from omlx_cache_daemon.service.options import REMOVED_NAMES, ServiceOptions
from omlx_cache_daemon.service.process import Service
from omlx_cache_daemon.service.units import KINDS, unit

_EPILOG = (
    "Every setting is a key of the file, an environment variable and a flag; the later of these "
    "wins. Variables are OMLX_CACHE_COLD_DIR, _COLD_BYTES, _MIN_FREE_BYTES, _LOG_LEVEL and "
    "_REMOTE..., as for stores, and OMLX_CACHED_ with the name for the others. Exit codes: 0 told "
    "to stop, 1 failure, 2 usage, 75 another service keeps the directory, 78 bad configuration."
)

_HELP = {
    "cold_dir": "The directory to keep. Default: that of stores",
    "cold_bytes": "Its budget, such as 200GiB, where nobody else chose one",
    "min_free_bytes": "What the disk must have free, as for stores",
    "log_level": "debug, info, warning, error or critical. Default: info",
    "remote_writes": "Which pages are sent to the store for all processes, which then say "
    "remote_writes=service: all, reused or off. Default: all",
}
"""Of settings that stores have too, what they are here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service, or what was asked for instead, and return the exit code."""
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except ConfigError as error:
        return _complain(error, BAD_CONFIGURATION)
    except CommandError as error:
        return _complain(error, error.exit_code)
    except OSError as error:
        return _complain(error, FAILURE)


def _run(args: argparse.Namespace) -> int:
    if args.print_unit is not None:
        sys.stdout.write(unit(args.print_unit))
        return OK
    read = partial(read_configuration, _flags(args), args.config)
    configuration = read()
    if args.check_config:
        if configuration.options.has_secret:
            read_secret(Path(configuration.options.status_token_file), "status_token_file")
        configuration.settings.remote_options("any")
        return _show(configuration, os.environ)
    os.umask(0o077)
    show_messages(configuration.settings.log_level)
    return Service(configuration, read).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="omlx-cached",
        description="Keeps the cache's directory when no server runs: within its budget, checked "
        "and swept; and shows what all processes of this user do. Nothing needs it.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"omlx-cached {__version__}")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a TOML file, instead of the default one"
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="show each setting and where it came from, or what is wrong (exit code 78), and end; "
        "changes nothing",
    )
    parser.add_argument(
        "--print-unit",
        choices=KINDS,
        help="print a systemd user unit or a LaunchAgent for this installation, and end",
    )
    for name in NAMES:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=_metavar(name),
            help=_HELP.get(name) or _described(name),
        )
    for name in REMOVED_NAMES:
        parser.add_argument(f"--{name.replace('_', '-')}", help=argparse.SUPPRESS)
    return parser


def _metavar(name: str) -> str:
    return "BYTES" if name == "scrub_bytes_per_second" else name.rpartition("_")[2].upper()


def _described(name: str) -> str:
    """Return what a setting is, and its default."""
    own = ServiceOptions.model_fields
    field = own[name] if name in own else CacheSettings.model_fields[name]
    said = " ".join((field.description or "").split()).replace("%", "%%")
    return f"{said} Default: {shown(name, field.default)}"


def _flags(args: argparse.Namespace) -> dict[str, str]:
    given = {name: getattr(args, name, None) for name in (*NAMES, *REMOVED_NAMES)}
    return {name: value for name, value in given.items() if value is not None}


def _show(configuration: Configuration, environ: Mapping[str, str]) -> int:
    file = configuration.file
    missing = f"no file at {default_file(environ, Path.home())}"
    sys.stdout.write(f"File: {missing if file is None else file}\n\n")
    rows = [[name, s["rendered"], s["origin"]] for name, s in configuration.sources().items()]
    sys.stdout.write(table(("SETTING", "VALUE", "ORIGIN"), rows))
    sys.stdout.writelines(f"Note: {text(note)}\n" for note in configuration.notes())
    return OK


def _complain(error: Exception, code: int) -> int:
    sys.stderr.writelines(f"omlx-cached: {line}\n" for line in str(error).splitlines())
    return code
