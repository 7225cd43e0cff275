"""Deleting files that are no longer wanted; what the disk keeps goes on counting."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from omlx_cache_storage.cold.changes import Removed, Removing
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.index import Index, PendingDeletion
from omlx_cache_storage.cold.ledger import WAIT_SECONDS
from omlx_cache_storage.cold.sharing import Sharing
from omlx_cache_storage.events import How
from omlx_cache_storage.format.names import StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

RETRIED = 32
"""Files that are tried again at a time: a disk that keeps thousands is not asked for all."""


class Cleared(NamedTuple):
    """The pages that a namespace had on the disk, and those of them that were deleted by now."""

    found: set[PageId]
    deleted: set[PageId]


class Deleter:
    """Deletes files of a directory while it is held, and tells the others; one that the disk will
    not delete is doomed and tried again, and so is one for which the directory was not to be had.

    A file whose name an indexed page has again stays. Any thread may call; nothing raises.
    """

    def __init__(self, index: Index, files: PageFiles, sharing: Sharing) -> None:
        self._fs = files.fs
        self._files = files
        self._index = index
        self._doomed = index.doomed
        self._sharing = sharing

    def discard(self, pages: Iterable[PageId]) -> int:
        """Delete pages; return how many there were. Each is an event."""
        with self._index.lock:
            removed = self._index.drop(pages, "removed")
        self.delete(removed, "removed")
        return len(removed)

    def dismiss(self, pages: Iterable[PageId]) -> None:
        """Forget pages whose files the next `retry` deletes; touches no disk."""
        with self._index.lock:
            removed = self._index.drop(pages, "removed")
        self._index.doom(self._index.pending(removed, "removed"))
        self._index.left_index(removed)

    def clear(self, namespace: BlockKey, seconds: float = WAIT_SECONDS) -> Cleared:
        """Delete every page of a namespace; waits for peer processes for `seconds` at a time.

        First its directory gets another name, so that no store serves its pages again, whatever
        becomes of deleting them: what the disk does not delete now is deleted later. A disk that
        refuses the new name too may serve them after a restart.
        """
        aside, alone = None, True
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._sharing.changing(seconds))
            except OSError:
                alone = False
                with self._index.lock:
                    if self._sharing.is_lost or not self._sharing.ledger.is_open:
                        # What is read of the directory meanwhile, or when it is back, has it still.
                        self._index.cleared.add(namespace)
            with self._index.lock:
                files = self._index.contents.files()
            files = [file for file in files if file.namespace == namespace]
            with contextlib.suppress(OSError):
                aside = self._files.set_aside(namespace)
            with self._index.lock:
                found = [file.id for file in files if self._index.is_still(file)]
                removed = self._index.drop(found, "removed", None)
            pages = {stored.name.id for stored in removed}
            shards = {self._files.directory_of(stored) for stored in removed}
            gone = self._index.pending(removed, "removed")
            if aside is not None:
                gone = [
                    file._replace(path=os.path.join(aside, *file.path.split(os.sep)[-2:]))
                    for file in gone
                ]
            self._index.doom(gone)
        self._delete_files(gone, seconds if alone else 0.0)
        self._index.left_index(removed)
        if aside is not None:
            # Without the directory's lock too: nobody else knows the name.
            self._files.remove_tree(aside)
            self._files.end_aside(namespace, aside)
            with contextlib.suppress(OSError), self._sharing.changing(seconds if alone else 0.0):
                self._sharing.tidy(shards)
        left = {f.page.name.id for f in gone if f.page is not None and self._fs.exists(f.path)}
        return Cleared(pages, pages - left)

    def delete(
        self,
        removed: Sequence[StoredPage],
        why: How,
        seconds: float = WAIT_SECONDS,
        *,
        held: bool = False,
    ) -> None:
        """Delete the files of pages that have left the index; `held`: the caller holds the
        directory, for these at least."""
        files = self._index.pending(removed, why)
        if held:
            self._delete_held(files)
        else:
            self._delete_files(files, seconds)
        self._index.left_index(removed)

    def _delete_files(
        self, files: Sequence[PendingDeletion], seconds: float = WAIT_SECONDS
    ) -> None:
        """Delete files, and the directories that they leave empty; waits for the directory for
        about so many seconds."""
        # They count until they are gone: others write between two holds.
        self._index.doom(files)
        allow, left = self._sharing.ledger.allow, list(files)
        while left:
            try:
                with self._sharing.changing(seconds):
                    count = allow(len(left)) or 1
                    while left and count:
                        self._delete_held(left[:count])
                        left = left[count:]
                        count = allow(len(left))
            except OSError:
                # Each once: a directory that is held is not waited for again and again.
                return

    def _delete_held(self, files: Sequence[PendingDeletion]) -> None:
        """Delete files, and the directories that they leave empty, for a caller that holds the
        directory."""
        leaving = []
        for file in files:
            if self._is_named(file):
                self._doomed.end(file.path)
            else:
                leaving.append(file)
        pages = tuple(file.page for file in leaving if file.page is not None)
        if pages:
            self._sharing.tell(Removing(pages))
        gone = []
        for file in leaving:
            try:
                self._fs.remove(file.path)
                self._doomed.end(file.path)
                gone.append(file)
            except OSError:
                self._index.doom([file])
        self._sharing.tidy({os.path.dirname(file.path) for file in gone})
        removed = ((file.page, file.why) for file in gone if file.page is not None)
        self._sharing.tell(
            *(Removed(p, why) for p, why in removed if not self._index.is_indexed(p.name))
        )

    def retry(self, seconds: float = WAIT_SECONDS) -> None:
        """Try again some of what could not be deleted before."""
        # Those that fail again go to the end of the line.
        self._delete_files(self._doomed.all()[:RETRIED], seconds)

    def _is_named(self, file: PendingDeletion) -> bool:
        """True when a page has the name that was to be deleted: not one that was set aside."""
        page = file.page
        if page is None or file.path != self._index.path(page):
            return False
        return self._index.is_indexed(page.name)
