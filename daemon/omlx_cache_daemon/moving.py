"""A cold directory's way to another place: there it is whole, or not at all.

It is copied to `.NAME.moving` beside its new place, which gets its name when all is durable. Only
then the old directory becomes `.NAME.moved` beside its old place, and is deleted. Whenever this is
interrupted, the next call goes on.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from omlx_cache_daemon.cold import reading
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.render import quantity
from omlx_cache_daemon.users import kept_from_others, users_of
from omlx_cache_storage.cold.copying import MARKER_FILE, Copied, copy_directory, extent_of
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.document import read_document
from omlx_cache_storage.cold.temporary import TemporaryNames

_SPARE_SHARE = 100
"""One part in so many of what is copied is to stay free, for what directories take more."""
_NOT_RENAMED = frozenset({errno.EXDEV, errno.EBUSY, errno.EPERM})
_REMEMBERED = 1000


@dataclass(slots=True)
class Move:
    """A move from `source` to `target`: what was done. `damaged` pages went nowhere, and `left`
    names files that stay at the old place."""

    source: Path
    target: Path
    keep: bool
    renamed: bool = False
    files: int = 0
    nbytes: int = 0
    damaged: int = 0
    left_files: int = 0
    left: list[Copied] = field(default_factory=list)

    @property
    def staging(self) -> Path:
        return self.target.with_name(f".{self.target.name}.moving")

    @property
    def discarded(self) -> Path:
        return self.source.with_name(f".{self.source.name}.moved")


def planned(source: Path, target: Path, *, keep: bool) -> Move:
    """Return a move that can begin, as far as that can be seen; raises CommandError."""
    source = Path(os.path.realpath(source))
    target = Path(os.path.realpath(target.parent)) / target.name
    if not target.parent.is_dir():
        raise CommandError(f"there is no directory {target.parent}: make it, or mount its disk")
    move = Move(source, target, keep)
    if source == target or source in target.parents or target in source.parents:
        raise CommandError(f"{target} and {source} lie in each other: name another place")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CommandError(f"{target} exists, and is no directory: name a new one")
    if os.path.ismount(target):
        raise CommandError(f"{target} is a disk's root: name {target}/omlx-cache instead")
    if target.exists() and any(target.iterdir()) and not _is_unfinished(move, target):
        raise CommandError(
            f"{target} is not empty: name a directory that is not there yet, such as "
            f"{target}/omlx-cache"
        )
    return move


def finish_earlier(move: Move) -> bool:
    """Do what an earlier move to the same place had still to do when its copy was complete; True
    when that was all. Raises CommandError for the rest of a move to another place."""
    unfinished = _is_unfinished(move, move.target)
    if move.discarded.is_dir():
        if not unfinished:
            raise CommandError(f"{move.discarded} is what an earlier move left: delete it")
        shutil.rmtree(move.discarded)
    if not unfinished or move.source.exists():
        return False
    os.unlink(move.target / MARKER_FILE)
    return True


def carry_out(move: Move) -> Generator[int, None, None]:
    """Move, and yield the bytes of each file that has come; the first value is how many will.

    Raises CommandError; what has come by then is not copied again by the next call.
    """
    fs = FileSystem()
    with reading(move.source), kept_from_others(move.source):
        fs.claim(move.source)
        if not move.keep and _rename(move, fs):
            yield 0
            return
        if _is_unfinished(move, move.target):
            _take_back(move)
        with contextlib.suppress(FileNotFoundError):
            if not _is_unfinished(move, move.staging) and any(move.staging.iterdir()):
                raise CommandError(
                    f"{move.staging} is in the way, part of a move from elsewhere: delete it"
                )
        yield _checked_room(move, fs)
        fd = _begun(move, fs)
        try:
            if not fs.try_lock(fd):
                raise CommandError(f"another process moves to {move.target} at this moment")
            _mark(move, fs)
            yield from _copied(move, fs)
            _publish(move, fs)
        finally:
            fs.close(fd)
        if not move.keep:
            _leave(move, fs)
        fs.remove(os.path.join(move.target, MARKER_FILE))


def _rename(move: Move, fs: FileSystem) -> bool:
    """Give the directory its new name where that is on the same disk; False where it is not."""
    try:
        os.rename(move.source, move.target)
    except OSError as error:
        if error.errno in _NOT_RENAMED:
            return False
        raise CommandError(
            f"{move.source} cannot become {move.target}: {error.strerror}"
        ) from error
    for parent in (move.target.parent, move.source.parent):
        fs.sync_directory(parent, "fsync")
    if _is_unfinished(move, move.staging):
        # What a copy of it had begun.
        shutil.rmtree(move.staging)
    move.renamed = True
    return True


def _checked_room(move: Move, fs: FileSystem) -> int:
    """Return how many bytes there are to copy; raises CommandError when the disk lacks the room."""
    wanted, there = extent_of(move.source, fs), extent_of(move.staging, fs)
    nbytes = wanted.nbytes + wanted.nbytes // _SPARE_SHARE - there.nbytes
    free = fs.free_bytes(move.target.parent)
    if nbytes > free:
        raise CommandError(
            f"{move.target.parent} has {quantity('bytes', free)} free, and "
            f"{quantity('bytes', nbytes)} are needed: free some, or take less with it "
            f"(omlx-cache prune --to SIZE --cold-dir {move.source})"
        )
    spare = fs.spare_files(move.target.parent)
    if spare is not None and wanted.files - there.files > spare:
        raise CommandError(
            f"{move.target.parent} has room for {spare:,} more files, and "
            f"{wanted.files - there.files:,} are needed"
        )
    return wanted.nbytes


def _begun(move: Move, fs: FileSystem) -> int:
    """Make the directory that is copied to, if need be, and open it."""
    try:
        fs.make_directory(move.staging)
        return fs.open_directory(move.staging)
    except OSError as error:
        raise CommandError(f"{move.staging}: {error.strerror}") from error


def _copied(move: Move, fs: FileSystem) -> Iterator[int]:
    try:
        for file in copy_directory(move.source, move.staging, fs):
            if file.left is not None:
                move.left_files += 1
                move.left += [file] * (len(move.left) < _REMEMBERED)
            elif file.damaged is not None:
                move.damaged += 1
            else:
                move.files += 1
                move.nbytes += file.nbytes
            yield file.nbytes
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise CommandError(
            f"{error.strerror}{where}: {quantity('bytes', move.nbytes)} have come. The old "
            "directory is whole; the same command goes on with it, and to give it up delete "
            f"{move.staging}"
        ) from error


def _publish(move: Move, fs: FileSystem) -> None:
    """Give a complete copy its name."""
    fd = fs.open_directory(move.staging)
    try:
        # Once for all files: macOS flushes the drive's own cache then.
        fs.sync(fd, "full")
    finally:
        fs.close(fd)
    # An empty directory may have the name; one that is not is refused by the system.
    os.rename(move.staging, move.target)
    fs.sync_directory(move.target.parent, "fsync")


def _take_back(move: Move) -> None:
    """Have a copy under its temporary name again whose move was interrupted at its very end."""
    users = users_of(move.target)
    if users:
        raise CommandError(f"{move.target} is in use already, and {move.source} is still there")
    os.rename(move.target, move.staging)


def _leave(move: Move, fs: FileSystem) -> None:
    """Delete the old directory, of which everything is at the new place but what was left behind;
    with that the rest stays too."""
    if move.left_files:
        return
    try:
        os.rename(move.source, move.discarded)
        fs.sync_directory(move.source.parent, "fsync")
    except OSError:
        # A disk's root keeps its name; what is in it goes.
        for entry in list(fs.scan(move.source)):
            _remove(entry.path)
        return
    shutil.rmtree(move.discarded)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _mark(move: Move, fs: FileSystem) -> None:
    raw = json.dumps({"version": 1, "source": _identity(move)}).encode()
    TemporaryNames().replace(move.staging / MARKER_FILE, raw, fs, "fsync")


def _is_unfinished(move: Move, directory: Path) -> bool:
    """True for a copy of the same directory whose move did not end."""
    said = read_document(directory / MARKER_FILE, FileSystem()).get("source")
    return said is not None and said == _identity(move)


def _identity(move: Move) -> str:
    return os.fspath(move.source)
