"""What lies in the shared directory: physical bytes, temporary files, pages, and how often each."""

import os
import stat
from collections import Counter
from pathlib import Path

from omlx_cache_storage.format.names import TEMPORARY_PREFIX, parse_name

Walk = dict[tuple[str, int, int], int]
"""Bytes by path, inode, and when a file's inode changed last: the next file of a name may have the
inode of the one before."""


def walk(directory: Path) -> Walk:
    """Return the physical bytes of each file and directory, itself included.

    What vanishes meanwhile is left out. Of a directory that moves, this is no picture of any
    moment.
    """
    found: Walk = {}
    pending = [str(directory)]
    while pending:
        path = pending.pop()
        try:
            info = os.lstat(path)
            is_directory = stat.S_ISDIR(info.st_mode)
            if is_directory:
                pending += [entry.path for entry in os.scandir(path)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        changed = 0 if is_directory else info.st_ctime_ns
        found[path, info.st_ino, changed] = info.st_blocks * 512
    return found


def nbytes(found: Walk) -> int:
    """Return the bytes of a walk: a file that was met under two names is one."""
    return sum({inode: size for (_, inode, _), size in found.items()}.values())


def surely(earlier: Walk, later: Walk) -> int:
    """Return bytes that lay there at the moment between two walks: of what both have met under the
    same name, and nobody has touched. More may have been there, and not less."""
    both = {one: min(size, later[one]) for one, size in earlier.items() if one in later}
    return nbytes(both)


def temporary(found: Walk) -> list[str]:
    """Return the temporary files."""
    return [path for path, _, _ in found if os.path.basename(path).startswith(TEMPORARY_PREFIX)]


def twice(found: Walk) -> list[str]:
    """Return the pages that a namespace has two files of."""
    pages: Counter[tuple[str, str]] = Counter()
    for path, _, _ in found:
        name = parse_name(os.path.basename(path))
        if name is not None:
            namespace = os.path.dirname(os.path.dirname(path))
            pages[namespace, f"{name.id.key.hex()[:16]} {name.id.group}"] += 1
    return [page for (_, page), count in pages.items() if count > 1]


def parts(found: Walk) -> str:
    """Say what takes how many bytes."""
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for (path, _, _), size in found.items():
        base = os.path.basename(path)
        kind = (
            "temporary" if base.startswith(TEMPORARY_PREFIX)
            else "pages" if parse_name(base)
            else "directories" if "." not in base and base != "ledger"
            else base
        )  # fmt: skip
        sums[kind] += size
        counts[kind] += 1
    return ", ".join(f"{counts[kind]} {kind} {sums[kind]}" for kind in sorted(sums))
