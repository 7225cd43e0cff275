"""One cold directory: whose it is, on which disk, and what lies in it beside pages."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from omlx_cache.settings import CacheSettings
from omlx_cache.settings.machine import text_of
from omlx_cache.settings.sizes import counted, format_size
from omlx_cache_daemon.changing import remove_useless
from omlx_cache_daemon.doctor.examination import SET_ASIDE, Context, Finding
from omlx_cache_daemon.doctor.machine import PRIVATE, close, disks_of_stores
from omlx_cache_daemon.offline_files import root_of
from omlx_cache_storage.breaker import NO_ROOM
from omlx_cache_storage.cold.catalog import namespace_directories
from omlx_cache_storage.cold.disk import is_private, physical_bytes, temporary_name
from omlx_cache_storage.cold.files import TAG_FILE
from omlx_cache_storage.cold.root import DirectoryGone, kind_of, locks_work
from omlx_cache_storage.cold.small_files import BUDGET, PINS
from omlx_cache_storage.format.names import BUDGET_FILE, LEDGER_FILE, PINS_FILE
from omlx_cache_storage.private import trouble

_OWN_SHARE = 20
"""Of a disk, the part that deleting files may not free."""
_NOTHING = "nothing is kept on the disk"
_ANOTHER = "set cold_dir to another place (omlx-cache config shows who sets it), and restart"
_ELSEWHERE = "omlx-cache export, and import on a disk of this machine"


def directory(context: Context) -> Iterator[Finding]:
    """It is the one that it was and can be read, or a store can make it."""
    place, known = context.directory, context.settings
    is_wanted = not isinstance(known, CacheSettings) or not known.hot_cache_only
    if not context.exists and not is_wanted:
        return
    with contextlib.suppress(OSError):
        try:
            root_of(place).check()
        except DirectoryGone as gone:
            # What gives the cache up comes after what helps it.
            what, otherwise, how = str(gone.strerror).partition(" If ")
            yield Finding(
                "error",
                what,
                _NOTHING,
                "mount its disk (lsblk -f shows disks): stores use it again within a minute, "
                f"without a restart. Or {_ANOTHER}.{otherwise}{how}",
            )
            return
    above = next((path for path in place.parents if path.exists()), place.parent)
    if not context.exists and os.path.lexists(place):
        yield Finding(
            "error", f"{place} is no directory that can be read", _NOTHING, f"ls -ld {place}"
        )
    elif not context.exists and not os.access(above, os.W_OK):
        yield Finding(
            "error",
            f"{place} is missing, and {above} does not let it be made",
            _NOTHING,
            _ANOTHER,
        )


def file_system(context: Context) -> Iterator[Finding]:
    kind = kind_of(context.place)
    if kind.network:
        yield Finding(
            "warning",
            f"{context.place} lies on a file system ({kind.name}) that other machines may change",
            "the budget holds for this machine's processes only, and a network is no SSD",
            _ELSEWHERE,
        )
    ledger = context.directory / LEDGER_FILE
    is_shared = context.exists and ledger.is_file() and not _why_unwritable(context)
    if is_shared and not locks_work(ledger, context.fs):
        yield Finding(
            "error",
            f"locks on files do nothing in {context.directory}",
            "stores refuse it, and keep nothing on the disk",
            f"{_ELSEWHERE}; or mount it with locks",
        )


def free_space(context: Context) -> Iterator[Finding]:
    """The disk has what is to stay free, and the budget can be reached."""
    least, spare = context.min_free, context.spare_bytes
    mount = context.fs.mount_point(context.place)
    lacking = 0 if context.budget is None else context.budget.nbytes - context.census.nbytes - spare
    others = max(0, context.fs.taken_bytes(mount) - context.census.nbytes)
    room = context.room_bytes
    quota = f"omlx-cache quota {format_size(room)} {context.option}; or " if room > 0 else ""
    # A file system's own structures count as others' bytes.
    remedy = (
        f"{quota}a larger disk, or less min_free_bytes"
        if others < max(-spare, lacking, (others + room) // _OWN_SHARE)
        else f"{context.freeing}. If it fills again, a program goes on writing: lsof {mount}, or, "
        f"if it opens its file for moments only, ps ax | grep -F {mount}"
    )
    if spare < 0:
        yield Finding(
            "warning",
            f"the disk has {format_size(spare + least)} free, less than min_free_bytes "
            f"({format_size(least)}): other files take {format_size(others)} of it, the cache "
            f"{format_size(context.census.nbytes)}",
            "stores evict pages until that much is free, and write nothing when none is left",
            remedy,
        )
    elif context.budget is not None and lacking > 0:
        yield Finding(
            "warning",
            f"the budget is {format_size(context.budget.nbytes)}, and the disk lacks "
            f"{format_size(lacking)} for all of it: other files take {format_size(others)}",
            "pages leave sooner than the budget says",
            remedy,
        )


def inodes(context: Context) -> Iterator[Finding]:
    if context.lacks_files:
        yield Finding(
            "error",
            "the disk has hardly a file (inode) left",
            "no page can be written, however many bytes are free",
            f"delete files on the disk; du --inodes -x {context.fs.mount_point(context.place)} | "
            "sort -n | tail shows where most are, and a program may go on making some. Or "
            "export, and import to another disk",
        )


def permissions(context: Context) -> Iterator[Finding]:
    place, info = context.directory, context.directory.stat()
    wrong = trouble(place, info, allowed=PRIVATE)
    own = info.st_uid == os.geteuid()
    # What is no cache's, and holds other things, is not to be closed for it.
    if wrong and (context.census.pages or not context.census.foreign):
        used = is_private(info)
        yield Finding(
            "warning" if used else "error",
            wrong,
            "others may read what prompts were about" if used else "no store uses it",
            f"chmod 700 {place}" if own else wrong,
            partial(close, place) if own and _is_cold(place, context) else None,
        )


def writable(context: Context) -> Iterator[Finding]:
    if why := _why_unwritable(context):
        mount = context.fs.mount_point(context.directory)
        device, *options = _mounted(mount)
        repair = (
            f"stop the servers that use it; umount {mount} && fsck {device}; mount {device} "
            f"{mount}; start them"
        )
        yield Finding(
            "warning",
            f"nothing can be written to {context.directory} ({why})",
            "what is there is restored, and nothing is added or evicted",
            f"its file system met an error (dmesg): {repair}"
            if "emergency_ro" in options or {"ro", "errors=remount-ro"} <= {*options}
            else f"mount it so that it can be written to (mount -o remount,rw {mount}). After an "
            f"error of the disk (dmesg) check it first: {repair}",
        )


def times(context: Context) -> Iterator[Finding]:
    """The file system keeps the times of files well enough to tell which page was used last."""
    path = temporary_name(os.fspath(context.directory))
    # Far from every second, and from every other one, which is all that some keep.
    kept = wanted = (int(time.time()) // 2 * 2 - 3) * 10**9 + 334_567_891
    # What cannot be written is told of elsewhere.
    with contextlib.suppress(OSError):
        context.fs.write(path, [b"?"], "none")
        context.fs.set_times(path, wanted)
        kept = os.stat(path).st_mtime_ns
    with contextlib.suppress(OSError):
        context.fs.remove(path)
    if abs(kept - wanted) >= 100_000_000:
        yield Finding(
            "warning",
            "the file system keeps times of files to a second or worse",
            "which page was used last is guessed after a restart",
            "omlx-cache export, and import on a disk with another file system",
        )


def budget_file(context: Context) -> Iterator[Finding]:
    path = context.directory / BUDGET_FILE
    is_known = context.budget is not None
    with contextlib.suppress(OSError):
        is_known = is_known or BUDGET.is_newer(context.directory, context.fs)
    if os.path.lexists(path) and not is_known:
        yield Finding(
            "error",
            f"{path} cannot be understood",
            "a budget that a person set does not count",
            "omlx-cache doctor --fix sets it aside; then omlx-cache quota SIZE",
            partial(_set_aside, path),
        )


def pins_file(context: Context) -> Iterator[Finding]:
    path = context.directory / PINS_FILE
    is_newer = is_readable = False
    with contextlib.suppress(OSError):
        is_newer = PINS.is_newer(context.directory, context.fs)
        is_readable = PINS.is_readable(context.directory, context.fs)
    if not is_readable:
        yield Finding(
            "warning",
            f"{path} cannot be understood, or says more than this version understands",
            "what a person pinned may be evicted",
            "use the version of omlx-cache that wrote it; or omlx-cache doctor --fix sets it "
            "aside, then omlx-cache quota --pin",
            None if is_newer else partial(_set_aside, path),
        )


def passed_over(context: Context) -> Iterator[Finding]:
    own: list[str] = []
    others: list[str] = []
    for path in context.census.ignored:
        with contextlib.suppress(OSError):
            info = os.lstat(path)
            is_plain = stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)
            (own if is_plain and info.st_uid == os.geteuid() else others).append(path)
    if own:
        # While nobody else could get at them, nobody else has changed them.
        closed = not trouble(context.directory, context.directory.stat(), allowed=PRIVATE)
        yield Finding(
            "warning",
            f"other users may change {counted(len(own), 'file')} or their directories",
            "stores pass them over",
            f"chmod -R go-rwx {context.directory}" if closed else f"ls -lR {own[0]}",
            partial(close, *own) if closed else None,
            own,
        )
    if others:
        yield Finding(
            "warning",
            f"{counted(len(others), 'path')}, another user's or no plain file: {others[0]}",
            "stores pass them over, and count no bytes of theirs",
            f"ls -l {others[0]}",
            files=others,
        )


def leftovers(context: Context) -> Iterator[Finding]:
    left = context.census.left
    # A store that has just made one is about to put a page there.
    empty = [] if context.users else context.census.empty
    if left:
        yield Finding(
            "warning",
            f"{counted(len(left), 'half-written file')} of writers that have ended",
            "that is wasted room; the next store that opens the directory deletes it",
            "omlx-cache doctor --fix",
            partial(_delete, context, left, []),
        )
    if empty:
        yield Finding(
            "note",
            f"empty directories: {len(empty):,}",
            "each takes a little room",
            "omlx-cache doctor --fix",
            partial(_delete, context, [], empty),
        )


def foreign_files(context: Context) -> Iterator[Finding]:
    caches = [path for path in context.census.foreign if _is_cold(Path(path), context)]
    for path in caches:
        yield Finding(
            "warning",
            f"{path} is another cache, inside of this one",
            "no store uses its pages here, and no budget counts their bytes",
            f"move it out of {context.directory}",
        )
    others = [path for path in context.census.foreign if path not in caches]
    if others:
        given = [Path(path) for path in others]
        # A link takes its own room only: what it names may lie on another disk.
        below = (one for path in given if not path.is_symlink() for one in path.rglob("*"))
        yield Finding(
            "note",
            f"{format_size(sum(physical_bytes(one.lstat()) for one in (*given, *below)))} of other "
            f"files, which omlx-cache does not delete: {others[0]}",
            "they are not counted for the budget, and take their room of the disk",
            f"ls -lR {others[0]}",
            files=others,
        )


def _why_unwritable(context: Context) -> str:
    """Return why no file can be made in the directory, "" where one can, or has no room only."""
    path = temporary_name(os.fspath(context.directory))
    try:
        context.fs.write(path, [b"?"], "none")
    except OSError as error:
        return "" if error.errno in NO_ROOM else error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            context.fs.remove(path)
    return ""


def _mounted(mount: str) -> list[str]:
    """Return the device of what is mounted at a path, and its options, if the system tells them."""
    lines = map(str.split, text_of(Path("/proc/mounts")).splitlines())
    known = {point: [device, *options.split(",")] for device, point, _, options, *_ in lines}
    return known.get(mount, ["DEVICE"])


def _is_cold(place: Path, context: Context) -> bool:
    """True for a directory that is a cache's, and not somebody's home."""
    is_marked = any((place / name).is_file() for name in (TAG_FILE, LEDGER_FILE, BUDGET_FILE))
    return is_marked or any(True for _ in namespace_directories(place, context.fs))


def _delete(context: Context, left: Sequence[str], empty: Sequence[str]) -> str:
    remove_useless(context.directory, left, empty, context.fs)
    return f"{len(left) + len(empty):,} deleted"


def _set_aside(path: Path) -> str:
    aside = path.with_name(path.name + SET_ASIDE)
    os.rename(path, aside)
    return f"set aside as {aside.name} ({format_size(aside.lstat().st_size)})"


PLACE = (directory, disks_of_stores, file_system, free_space, inodes)
"""What is about a directory that may not be there yet. After a finding of the first of these the
others would look at the disk below."""
DIRECTORY = (
    permissions, writable, times, budget_file, pins_file, passed_over, leftovers, foreign_files,
)  # fmt: skip
