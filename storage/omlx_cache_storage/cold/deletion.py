"""Deleting files that are no longer wanted; what the disk keeps goes on counting."""

import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from omlx_cache_storage.cold.changes import Removed, Removing
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import WAIT_SECONDS
from omlx_cache_storage.cold.sharing import Sharing
from omlx_cache_storage.format.names import ENTRY_BYTES, PageName, StoredPage, page_path

RETRIED = 32
"""Files that are tried again at a time: a disk that keeps thousands is not asked for all."""


class PendingDeletion(NamedTuple):
    """A file to be deleted: its page has left the index, `why` in a word; without a page it is a
    temporary one."""

    page: StoredPage | None
    path: str
    cost: int
    why: str = "disk"


class Doomed:
    """Files that should be gone and may be there: they count until they are gone.

    `_lock` guards `_files` and `nbytes`; no I/O under it. Any thread may call.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self._files: dict[str, PendingDeletion] = {}
        self.nbytes = 0

    def __contains__(self, path: str) -> bool:
        with self._lock:
            return path in self._files

    def keep(self, *files: PendingDeletion) -> None:
        """Count files until they are gone."""
        with self._lock:
            for file in files:
                self._forget(file.path)
                self._files[file.path] = file
                self.nbytes += file.cost

    def left(self, path: str) -> None:
        """Note that a file is gone, or wanted again."""
        with self._lock:
            self._forget(path)

    def take(self, most: int = sys.maxsize) -> list[PendingDeletion]:
        """Return files that count no longer, those that were kept first at first."""
        with self._lock:
            files = list(itertools.islice(self._files.values(), most))
            for file in files:
                self._forget(file.path)
            return files

    def _forget(self, path: str) -> None:
        old = self._files.pop(path, None)
        self.nbytes -= 0 if old is None else old.cost

    def delete_temporary(self, path: str, nbytes: int) -> None:
        """Delete a file that was being written, of `nbytes` at most. Raises nothing; does not wait
        for anybody."""
        try:
            self._fs.remove(path)
        except OSError:
            # A disk mounted read-only refuses to delete what is not there, too.
            if self._fs.exists(path):
                self.keep(PendingDeletion(None, path, nbytes + ENTRY_BYTES))

    def check_integrity(self) -> None:
        """Assert that the byte count is that of the files."""
        with self._lock:
            assert self.nbytes == sum(file.cost for file in self._files.values())


class Deleter:
    """Deletes files of a directory while it is held, and tells the others; one that the disk will
    not delete is doomed and tried again, and so is one for which the directory was not to be had.

    `has_file` says that an indexed page has a file's name again: then it stays. Any thread may
    call; nothing raises.
    """

    def __init__(
        self, fs: FileSystem, doomed: Doomed, sharing: Sharing, has_file: Callable[[PageName], bool]
    ) -> None:
        self._fs = fs
        self._doomed = doomed
        self._sharing = sharing
        self._has_file = has_file

    def delete(self, files: Sequence[PendingDeletion], seconds: float = WAIT_SECONDS) -> None:
        """Delete files, and the directories that they leave empty; waits for the directory for
        about so many seconds."""
        # They count until they are gone: others write between two holds.
        self._doomed.keep(*files)
        allow, left = self._sharing.ledger.allow, list(files)
        while left:
            try:
                with self._sharing.changing(seconds):
                    count = allow(len(left)) or 1
                    while left and count:
                        self.delete_held(left[:count])
                        left = left[count:]
                        count = allow(len(left))
            except OSError:
                # Each once: a directory that is held is not waited for again and again.
                return

    def delete_held(self, files: Sequence[PendingDeletion]) -> None:
        """Delete files, and the directories that they leave empty, for a caller that holds the
        directory."""
        leaving = []
        for file in files:
            if self._is_named(file):
                self._doomed.left(file.path)
            else:
                leaving.append(file)
        pages = tuple(file.page for file in leaving if file.page is not None)
        if pages:
            self._sharing.tell(Removing(pages))
        gone = []
        for file in leaving:
            try:
                self._fs.remove(file.path)
                self._doomed.left(file.path)
                gone.append(file)
            except OSError:
                self._doomed.keep(file)
        self._sharing.tidy({os.path.dirname(file.path) for file in gone})
        removed = ((file.page, file.why) for file in gone if file.page is not None)
        self._sharing.tell(*(Removed(p, why) for p, why in removed if not self._has_file(p.name)))

    def retry(self, seconds: float = WAIT_SECONDS) -> None:
        """Try again some of what could not be deleted before."""
        # Those that fail again go to the end of the line.
        self.delete(self._doomed.take(RETRIED), seconds)

    def _is_named(self, file: PendingDeletion) -> bool:
        """True when a page has the name that was to be deleted: not one that was set aside."""
        page = file.page
        return (
            page is not None
            and file.path == page_path(self._sharing.directory, page.namespace, page.name)
            and self._has_file(page.name)
        )
