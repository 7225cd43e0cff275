"""`omlx-cache serve`: `omlx-cache run mlx_lm.server`, with the cache's settings as flags."""

import argparse
import logging
from typing import NoReturn

from omlx_cache_daemon.process import end_process, show_logs
from omlx_cache_daemon.server_flags import (
    add_help,
    add_limits,
    add_model,
    add_server,
    add_settings,
    given_level,
    given_settings,
)

_log = logging.getLogger(__name__)

USUAL = (
    "--model",
    "--host",
    "--port",
    "--log-level",
    "--max-tokens",
    "--max-prompt-tokens",
    "--hot-bytes",
    "--cold-dir",
    "--cold-bytes",
    "--status",
)
"""The flags that `--help` shows."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "serve",
        description="Runs mlx-lm's server with this cache in place of its own. After the first "
        "Ctrl-C, SIGTERM or SIGHUP it finishes requests and writes pending pages. A second one "
        "leaves 5 seconds for that, and a third ends the process.",
        add_help=False,
    )
    add_help(parser, USUAL)
    add_model(parser)
    add_server(parser)
    add_limits(parser)
    add_settings(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="also show how far each prompt is computed"
    )


def run(args: argparse.Namespace) -> NoReturn:
    level = show_logs(given_level(args), args.log_level)
    if args.model:
        # Before MLX is imported, which takes seconds on a cold disk.
        _log.info("loading %s ...", args.model)
    from omlx_cache.integrations.launching import launch
    from omlx_cache.settings import CacheSettings

    given = given_settings(args)
    options = {
        "body_bytes": args.max_body_bytes,
        "prompt_tokens": args.max_prompt_tokens,
        "drain_seconds": args.drain_timeout,
        "verbose": args.verbose,
        "given": (*given, *(("log_level",) if given_level(args) else ())),
    }
    settings = CacheSettings(**{**level, **given})
    end_process(launch("mlx_lm.server", args.passed_on, settings, has_status=True, **options))
