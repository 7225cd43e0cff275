"""Deleting files that are no longer wanted; what the disk keeps goes on counting."""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import WAIT_SECONDS
from omlx_cache_storage.format.names import ENTRY_BYTES, StoredPage

RETRIED = 32
"""Files that are tried again at a time: a disk that keeps thousands is not asked for all."""


class PendingDeletion(NamedTuple):
    """A file to be deleted: its page has left the index, `why` in a word; without a page it is a
    temporary one."""

    page: StoredPage | None
    path: str
    cost: int
    why: str = "disk"


class Changing(Protocol):
    """Keeps everybody else, in this process and others, from changing the directory."""

    def __call__(self, seconds: float = ...) -> AbstractContextManager[None]: ...


class Deleter:
    """Deletes files; one that the disk will not delete keeps its bytes and is tried again, and so
    is one for which the directory was not to be had.

    `_lock` guards `_undeletable` and `_nbytes`; no I/O under it. A file is deleted under
    `changing`, and not when `is_named` says that the name is in use again. `tidy` removes the
    directories among those given that are empty now, `going` is told which files are about to go
    and `gone` which did. `allow` says how many of so many files are deleted before others have the
    directory.
    Any thread may call.
    """

    def __init__(
        self,
        fs: FileSystem,
        tidy: Callable[[Iterable[str]], None],
        changing: Changing,
        allow: Callable[[int], int],
        is_named: Callable[[PendingDeletion], bool],
        gone: Callable[[list[PendingDeletion]], None],
        going: Callable[[list[PendingDeletion]], None] = lambda files: None,
    ) -> None:
        self._fs = fs
        self._tidy = tidy
        self._changing = changing
        self._allow = allow
        self._is_named = is_named
        self._gone = gone
        self._going = going
        self._lock = threading.Lock()
        self._undeletable: dict[str, PendingDeletion] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of files that should be gone and are not."""
        with self._lock:
            return self._nbytes

    def is_pending(self, path: str) -> bool:
        """True for a file that should be gone and is not."""
        with self._lock:
            return path in self._undeletable

    def delete(self, files: Iterable[PendingDeletion], seconds: float = WAIT_SECONDS) -> None:
        """Delete files, and the directories that they leave empty; waits for the directory for
        about so many seconds. Raises nothing."""
        left = list(files)
        # They count until they are gone: others write between two holds.
        for file in left:
            self.keep(file)
        while left:
            try:
                with self._changing(seconds):
                    count = self._allow(len(left)) or 1
                    while left and count:
                        self.delete_held(left[:count])
                        left = left[count:]
                        count = self._allow(len(left))
            except OSError:
                # Each once: a directory that is held is not waited for again and again.
                return

    def delete_held(self, files: list[PendingDeletion]) -> None:
        """Delete files, and the directories that they leave empty, for a caller that holds the
        directory. Raises nothing."""
        named = {file.path for file in files if self._is_named(file)}
        for path in named:
            self.left(path)
        files = [file for file in files if file.path not in named]
        self._going(files)
        gone = []
        for file in files:
            try:
                self._fs.remove(file.path)
                self.left(file.path)
                gone.append(file)
            except OSError:
                self.keep(file)
        self._tidy({os.path.dirname(file.path) for file in gone})
        self._gone(gone)

    def delete_temporary(self, path: str, nbytes: int) -> None:
        """Delete a file that was being written, of `nbytes` at most. Raises nothing; does not wait
        for anybody."""
        try:
            self._fs.remove(path)
        except OSError:
            # A disk mounted read-only refuses to delete what is not there, too.
            if self._fs.exists(path):
                self.keep(PendingDeletion(None, path, nbytes + ENTRY_BYTES))

    def retry(self, seconds: float = WAIT_SECONDS) -> None:
        """Try again some of what could not be deleted before."""
        with self._lock:
            files = list(self._undeletable.values())[:RETRIED]
            for file in files:
                del self._undeletable[file.path]
                self._nbytes -= file.cost
        # Those that fail again go to the end of the line.
        self.delete(files, seconds)

    def left(self, path: str) -> None:
        """Note that somebody else has deleted a file."""
        with self._lock:
            old = self._undeletable.pop(path, None)
            self._nbytes -= 0 if old is None else old.cost

    def keep(self, file: PendingDeletion) -> None:
        """Count a file that should be gone and may be there, until it is."""
        with self._lock:
            old = self._undeletable.pop(file.path, None)
            self._nbytes += file.cost - (old.cost if old is not None else 0)
            self._undeletable[file.path] = file

    def forget(self) -> list[PendingDeletion]:
        """Count nothing as undeletable any more, and return what was."""
        with self._lock:
            files = list(self._undeletable.values())
            self._undeletable.clear()
            self._nbytes = 0
            return files

    def check_integrity(self) -> None:
        """Assert that the byte count is that of the files."""
        with self._lock:
            assert self._nbytes == sum(file.cost for file in self._undeletable.values())
