"""Whether `ls` and `inspect` ask a store or read the cold directory."""

import argparse
import sys
from pathlib import Path

from omlx_cache_daemon.stores import add_store_options, running


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a store, and --cold-dir."""
    add_store_options(parser)
    parser.add_argument(
        "--cold-dir", type=Path, metavar="DIR", help="read this directory and ask no store"
    )


def offline_directory(args: argparse.Namespace) -> Path | None:
    """Return the directory to read, or None when a store is to be asked.

    Says so on standard error when it reads because nobody is there. A store that was chosen by
    --pid or --socket is asked in any case.
    """
    if args.cold_dir is not None:
        return Path(args.cold_dir)
    if args.pid is not None or args.socket is not None or running():
        return None
    from omlx_cache_daemon.cold import configured_directory

    directory = configured_directory()
    sys.stderr.write(f"omlx-cache: no store is running; reading {directory}\n")
    return directory
