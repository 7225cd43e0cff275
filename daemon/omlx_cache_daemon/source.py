"""Whether `ls` and `inspect` ask a store or read the cold directory."""

import argparse
import sys
from pathlib import Path

from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.stores import add_store_options, passed_over, running


def add_source_options(
    parser: argparse.ArgumentParser, cold_dir_help: str = "read this directory and ask no store"
) -> None:
    """Add the options that choose a store, and --cold-dir."""
    add_store_options(parser)
    parser.add_argument("--cold-dir", type=Path, metavar="DIR", help=cold_dir_help)


def offline_directory(args: argparse.Namespace) -> Path | None:
    """Return the directory to read, or None when a store is to be asked.

    Says so on standard error when it reads because nobody is there. A store that was chosen by
    --pid or --socket is asked in any case. Raises CommandError when --cold-dir names nothing.
    """
    if args.cold_dir is not None:
        return existing(args.cold_dir)
    if args.pid is not None or args.socket is not None or running():
        return None
    from omlx_cache_daemon.cold import configured_directory

    directory = configured_directory()
    unseen = "".join(f" (not looked in {place})" for place in passed_over())
    sys.stderr.write(f"omlx-cache: no store is running{unseen}; reading {directory}\n")
    return directory


def existing(directory: Path) -> Path:
    """Return the path if something is there; what it is, its reader finds out."""
    try:
        directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise CommandError(f"there is no directory {directory}") from None
    except OSError as error:
        raise CommandError(f"{directory}: {error.strerror}") from error
    return directory
