"""`omlx-cached`: reads the command line and the configuration, and runs the service."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omlx_cache import __version__
from omlx_cache.settings import CacheSettings, ConfigError
from omlx_cache_daemon.errors import BAD_CONFIGURATION, FAILURE, OK, CommandError, UsageError
from omlx_cache_daemon.parsing import OneLineParser
from omlx_cache_daemon.render import table, text
from omlx_cache_daemon.server_flags import CHECKS
from omlx_cache_daemon.service.configuration import (
    NAMES,
    REMOVED_NAMES,
    ServiceConfiguration,
    ServiceOptions,
    default_file,
    read_configuration,
    shown,
)
from omlx_cache_daemon.service.process import Service, show_messages
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
    "remote_writes": "Which pages are sent to the store for all processes with "
    "remote_writes=service: all or off. Default: all",
}


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return _run(_parser().parse_args(argv))
    except (ConfigError, CommandError, OSError) as error:
        sys.stderr.writelines(f"omlx-cached: {line}\n" for line in str(error).splitlines())
        if isinstance(error, ConfigError):
            return BAD_CONFIGURATION
        return error.exit_code if isinstance(error, CommandError) else FAILURE


def _run(args: argparse.Namespace) -> int:
    if args.print_unit is not None:
        sys.stdout.write(unit(args.print_unit, args.serve))
        return OK
    if args.serve is not None:
        raise UsageError("--serve goes with --print-unit: omlx-cache serve runs the server itself")
    given = {name: getattr(args, name) for name in (*NAMES, *REMOVED_NAMES)}
    flags = {name: value for name, value in given.items() if value is not None}
    read = partial(read_configuration, flags, args.config)
    configuration = read()
    if args.check_config:
        return _show(configuration)
    os.umask(0o077)
    show_messages(configuration.settings.log_level)
    return Service(configuration, read).run()


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="omlx-cached",
        description="Looks after the cache's directory, also while no server runs: keeps its "
        "budget, verifies pages and deletes leftovers. Shows what all processes of this user do. "
        "It is optional.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"omlx-cached {__version__}")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a TOML file in place of the default one"
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="show each setting with its origin, or what is wrong (exit code 78), and end; "
        "changes nothing",
    )
    parser.add_argument(
        "--print-unit",
        choices=KINDS,
        help="print a systemd user unit or a LaunchAgent for this installation, and end",
    )
    parser.add_argument(
        "--serve",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="with --print-unit: the unit of `omlx-cache serve` with these arguments instead",
    )
    for name in NAMES:
        size = "BYTES" if name == "scrub_bytes_per_second" else name.rpartition("_")[2].upper()
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=size,
            help=_HELP.get(name) or _described(name),
            type=CHECKS.get(name, str),
        )
    for name in REMOVED_NAMES:
        parser.add_argument(f"--{name.replace('_', '-')}", help=argparse.SUPPRESS)
    return parser


def _described(name: str) -> str:
    field = {**CacheSettings.model_fields, **ServiceOptions.model_fields}[name]
    said = " ".join((field.description or "").split()).replace("%", "%%")
    return f"{said} Default: {shown(name, field.default)}"


def _show(configuration: ServiceConfiguration) -> int:
    """Raises ConfigError for a secret that cannot be read."""
    file = configuration.file
    configuration.token()
    configuration.settings.remote_options("any")
    missing = f"no file at {default_file(os.environ, Path.home())}"
    sys.stdout.write(f"File: {missing if file is None else file}\n\n")
    rows = [[name, s["rendered"], s["origin"]] for name, s in configuration.sources().items()]
    sys.stdout.write(table(("SETTING", "VALUE", "ORIGIN"), rows))
    sys.stdout.writelines(f"Note: {text(note)}\n" for note in configuration.notes())
    return OK
