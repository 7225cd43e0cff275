"""The disk that the directory lies on: room, files, and whether it can do what is asked of it."""

import contextlib
import os
import time
from pathlib import Path

from omlx_cache_daemon.doctor.context import Context
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_daemon.render import quantity
from omlx_cache_storage.cold.root import kind_of, locks_work
from omlx_cache_storage.cold.small_files import temporary_name
from omlx_cache_storage.format.names import LEDGER_FILE


def free_space(context: Context) -> list[Finding]:
    """The disk has what is to stay free, and the budget can be reached."""
    there = _existing(context.directory)
    free, least = context.fs.free_bytes(there), context.min_free_bytes
    if free < least:
        return [
            Finding(
                "warning",
                f"the disk has {_size(free)} free, less than min_free_bytes ({_size(least)})",
                "stores write nothing more, and evict, until there is room",
                "free some room on the disk, or lower OMLX_CACHE_MIN_FREE_BYTES",
            )
        ]
    if context.budget is None:
        return []
    lacking = context.budget.nbytes - context.census.nbytes - (free - least)
    if lacking <= 0:
        return []
    return [
        Finding(
            "note",
            f"the budget is {_size(context.budget.nbytes)}, and the disk lacks {_size(lacking)} "
            "for all of it",
            "pages leave sooner than the budget says",
            f"omlx-cache quota {_size(context.budget.nbytes - lacking).replace(' ', '')} "
            f"{context.named}",
        )
    ]


def inodes(context: Context) -> list[Finding]:
    """The disk has room for more files."""
    spare = context.fs.spare_files(_existing(context.directory))
    if spare is None or spare > 0:
        return []
    return [
        Finding(
            "error",
            "the disk has hardly a file (inode) left",
            "no page can be written, however many bytes are free",
            f"delete files on the disk, or export and import to another one; df -i "
            f"{_existing(context.directory)}",
        )
    ]


def writable(context: Context) -> list[Finding]:
    """Pages can be written there."""
    if not context.exists or context.fs.is_writable(context.directory):
        return []
    what = "disk is mounted read-only" if context.fs.is_read_only(context.directory) else "mode"
    return [
        Finding(
            "warning",
            f"nothing can be written to {context.directory} (its {what})",
            "what is there is restored, and nothing is added or evicted",
            "mount it so that it can be written to, or set OMLX_CACHE_COLD_DIR",
        )
    ]


def kind(context: Context) -> list[Finding]:
    """The file system is this machine's, and its locks keep others out."""
    there = _existing(context.directory)
    found = []
    known = kind_of(there)
    if known.network:
        found.append(
            Finding(
                "warning",
                f"{there} lies on a file system ({known.name}) that other machines may change",
                "the budget holds for this machine's processes only, and a network is no SSD",
                "omlx-cache export, and import on a disk of this machine",
            )
        )
    ledger = context.directory / LEDGER_FILE
    is_shared = context.exists and ledger.is_file() and context.fs.is_writable(context.directory)
    if is_shared and not locks_work(ledger, context.fs):
        found.append(
            Finding(
                "error",
                f"locks on files do nothing in {context.directory}",
                "stores refuse it, and keep nothing on the disk",
                "omlx-cache export, and import on a disk of this machine; or mount it with locks",
            )
        )
    return found


def times(context: Context) -> list[Finding]:
    """The file system keeps the times of files well enough to tell which page was used last."""
    if not context.exists or not context.fs.is_writable(context.directory):
        return []
    path = temporary_name(os.fspath(context.directory))
    # Far from every second, and from every other one, which is all that some keep.
    wanted = (int(time.time()) // 2 * 2 - 3) * 10**9 + 334_567_891
    try:
        context.fs.write(path, [b"?"], "none")
        context.fs.set_times(path, wanted)
        kept = os.stat(path).st_mtime_ns
    except OSError:
        # A full disk is told of elsewhere.
        return []
    finally:
        with contextlib.suppress(OSError):
            context.fs.remove(path)
    if abs(kept - wanted) < 100_000_000:
        return []
    return [
        Finding(
            "warning",
            "the file system keeps times of files to a second or worse",
            "which page was used last is guessed after a restart",
            "omlx-cache export, and import on a disk with another file system",
        )
    ]


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _size(count: int) -> str:
    return quantity("bytes", count)
