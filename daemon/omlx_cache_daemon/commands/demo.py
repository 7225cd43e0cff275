"""`omlx-cache demo`: a prompt with and without the cache, on a small model or the user's own."""

import argparse
import sys
from pathlib import Path

from omlx_cache.mlx_lm_versions import check
from omlx_cache_daemon.argument_types import positive_count
from omlx_cache_daemon.errors import UsageError
from omlx_cache_daemon.render import print_json, uses_styles


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "demo",
        description="Prefills a prompt without the cache, then restores it from the hot tier, "
        "in a new process from SSD, and in part for a prompt that shares half of it. Exits with "
        "1 when a restored run gives other tokens.",
    )
    parser.add_argument("--model", metavar="PATH_OR_ID", help="an mlx-lm model (default: small)")
    parser.add_argument("--prompt-file", type=Path, metavar="FILE", help="the prompt's text")
    parser.add_argument("--tokens", type=positive_count, metavar="N", help="length of the prompt")
    parser.add_argument(
        "--new-tokens",
        type=positive_count,
        default=32,
        metavar="N",
        help="tokens to generate and compare (default: %(default)s)",
    )
    parser.add_argument(
        "--cold-dir", type=Path, metavar="DIR", help="keep the cold tier here (default: temporary)"
    )


def run(args: argparse.Namespace) -> int:
    check("omlx-cache demo")
    from omlx_cache.settings import CacheSettings
    from omlx_cache.tools.demo import run as demonstrate

    least = 2 * CacheSettings().block_size
    if args.tokens is not None and args.tokens < least:
        raise UsageError(f"--tokens {args.tokens} is too few: the demo needs two blocks, {least}")
    return demonstrate(args, print_json, styles=uses_styles(sys.stdout))
