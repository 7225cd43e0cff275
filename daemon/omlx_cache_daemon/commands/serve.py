"""`omlx-cache serve`: mlx-lm's OpenAI-compatible server, with prompts kept across restarts."""

import argparse
import logging
import os

from omlx_cache.mlx_lm_versions import check
from omlx_cache_daemon.logs import show_logs
from omlx_cache_daemon.options import positive_seconds
from omlx_cache_daemon.server_flags import (
    add_limits,
    add_model,
    add_server,
    add_settings,
    given_level,
    given_settings,
)

_log = logging.getLogger(__name__)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model, OpenAI-compatible, with this cache",
        description="Runs mlx-lm's server with this cache in place of its own. The first Ctrl-C "
        "or SIGTERM finishes the requests under way and writes the cache; a second one cuts "
        "them off.",
    )
    add_model(parser)
    add_server(parser)
    add_limits(parser)
    add_settings(parser)
    parser.add_argument(
        "--drain-timeout",
        type=positive_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long requests under way may take to end (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    check("omlx-cache serve")
    level = show_logs(given_level(args), args.log_level)
    if args.model:
        # Before MLX is imported, which takes seconds on a cold disk.
        _log.info("loading %s ...", args.model)
    from omlx_cache.integrations.mlx_lm.server.limits import Limits
    from omlx_cache.integrations.mlx_lm.server.serve import serve

    limits = Limits(
        args.max_body_bytes, args.max_prompt_tokens, args.max_requests, args.receive_timeout
    )
    settings = {**level, **given_settings(args)}
    code = serve(args, settings, args.drain_timeout, limits)
    # MLX frees the generation thread's compiled functions after Python has joined it, and needs
    # the interpreter for that: if it is being taken down by then, the process aborts. What was
    # written is flushed already; a thread that was left behind may hold what flushing waits for.
    os._exit(code)
