"""`omlx-cache run SERVER`: another project's server, its own flags, with this cache in place."""

import argparse
import os
from typing import NoReturn

from omlx_cache.integrations import SERVERS
from omlx_cache.settings.names import SETTING_NAMES, refusal, variable
from omlx_cache_daemon.argument_types import complete_by
from omlx_cache_daemon.errors import UsageError
from omlx_cache_daemon.process import end_process
from omlx_cache_daemon.render import warn


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "run",
        description="Runs a server's own command with this cache in place of the server's. All "
        "arguments after SERVER go to the server: `omlx-cache run vllm-mlx --help` shows its "
        "flags. Variables configure the cache, OMLX_CACHE_HOT_BYTES and so on: "
        "`omlx-cache config` shows them.",
        usage="%(prog)s [-h] [--require] SERVER ...",
        epilog=f"Servers: {', '.join(SERVERS)}.",
    )
    parser.add_argument(
        "--require",
        action="store_true",
        help="end with an error if the server cannot use the cache, instead of running without it",
    )
    # Optional for argparse, which would ask for "..." too where it is missing.
    complete_by(
        lambda prefix, args: SERVERS,
        parser.add_argument(
            "server", nargs="?", metavar="SERVER", help="a name from the list below"
        ),
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the server's own arguments"
    )
    parser.set_defaults(passes_on=True)


def run(args: argparse.Namespace) -> NoReturn:
    if args.server is None:
        raise UsageError(f"name a server: {', '.join(SERVERS)}; see omlx-cache run --help")
    if args.server not in SERVERS:
        known = list(SERVERS)
        raise UsageError(f"{refusal('server', args.server, known)}; known: {', '.join(known)}")
    from omlx_cache.integrations.launching import launch

    if args.require:
        os.environ[variable("require")] = "1"
    code = launch(args.server, args.arguments)
    names = [one.partition("=")[0].removeprefix("--").replace("-", "_") for one in args.arguments]
    settings = ", ".join(variable(name) for name in names if name in SETTING_NAMES)
    warn({f"the cache's settings are variables here: {settings}": code == 2 and settings})
    end_process(code)
