"""Whether a command asks a store or reads a cold directory, and which."""

import argparse
import os
import sys
from pathlib import Path

from omlx_cache_daemon.errors import CommandError, NobodyThere, UsageError
from omlx_cache_daemon.render import text
from omlx_cache_daemon.replies import Map, as_map, directory_of
from omlx_cache_daemon.stores import add_store_options, chosen, passed_over, running


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
    sys.stderr.write(f"omlx-cache: no store is running{unseen}; reading {text(directory)}\n")
    return directory


def used_directory(args: argparse.Namespace) -> Path:
    """Return the directory that is meant: the one that was named, that of the running stores, or
    the configured one, which need not be there.

    Raises UsageError when the running stores use several.
    """
    if args.cold_dir is not None:
        return existing(args.cold_dir)
    if args.pid is not None or args.socket is not None or running():
        try:
            infos = [as_map(store.client(args.timeout).call("ps")) for store in chosen(args)]
        except NobodyThere as error:
            raise NobodyThere(f"{error}; --cold-dir names the directory, and no store") from error
        used = {path for info in infos if (path := cold_dir_of(info)) is not None}
        if len(used) > 1:
            lines = "".join(f"\n  --cold-dir {path}" for path in sorted(used))
            raise UsageError(f"the running stores use {len(used)} directories; choose one:{lines}")
        if used:
            return Path(used.pop())
        if args.pid is not None or args.socket is not None:
            raise CommandError("the store keeps nothing on a disk")
    from omlx_cache_daemon.cold import configured_directory

    return configured_directory()


def cold_dir_of(info: Map) -> str | None:
    """Return the directory that a store says it uses, None for one without."""
    path = directory_of(info)
    return None if path is None else os.path.realpath(path)


def existing(directory: Path) -> Path:
    """Return the path if something is there; what it is, its reader finds out."""
    try:
        directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise CommandError(f"there is no directory {directory}") from None
    except OSError as error:
        raise CommandError(f"{directory}: {error.strerror}") from error
    return directory
