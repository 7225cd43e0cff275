"""Deleting unwanted files; a file that the disk does not delete stays counted."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from omlx_cache_storage.cold.index import PendingDeletion
from omlx_cache_storage.cold.ledger import WAIT_SECONDS
from omlx_cache_storage.cold.ledger_records import Removed, Removing
from omlx_cache_storage.cold.sharing import DirectoryPart
from omlx_cache_storage.format.names import PageName
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

RETRIED = 32
"""Files that are tried again at a time: a disk that keeps thousands is not asked for all."""


class Cleared(NamedTuple):
    found: set[PageId]
    deleted: set[PageId]


class Deleter(DirectoryPart):
    """Deletes files of a directory while it is held, and tells peer processes. A file that the disk
    does not delete, or for which the directory lock timed out, is doomed and tried again. A file
    whose name an indexed page has again stays. Any thread may call; nothing raises."""

    def discard(self, pages: Iterable[PageId], *, later: bool = False) -> int:
        """Delete pages; return how many there were. Each is an event. With `later` the next `retry`
        does it, and no disk is touched here."""
        removed: list[PendingDeletion] = []
        for part in self._index.in_parts(list(pages)):
            removed += self._index.drop(part, "removed")
        if not later:
            self.delete(removed)
        return len(removed)

    def clear(self, namespace: BlockKey, seconds: float = WAIT_SECONDS) -> Cleared:
        """Delete every page of a namespace; waits for peer processes for `seconds` at a time.

        First its directory gets another name, so that no store restores its pages again. Files that
        the disk does not delete now are deleted later. When the disk also rejects the new name, a
        restart may find them again.
        """
        aside = None
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._sharing.changing(seconds))
            except OSError:
                # Only once: the next steps wait for no peer process.
                seconds = 0.0
                with self._index.lock:
                    if self._sharing.is_lost or not self._sharing.ledger.is_open:
                        # A scan of the directory meanwhile, or once it is back, still finds the
                        # namespace.
                        self._index.cleared.add(namespace)
            with self._index.lock:
                files = self._index.contents.records()
            files = [file for file in files if file.namespace == namespace]
            shards = {self._files.directory_of(file.stored) for file in files}
            with contextlib.suppress(OSError):
                aside = self._files.set_aside(namespace)
            found: list[PageId] = []
            gone: list[PendingDeletion] = []
            for part in self._index.in_parts(files):
                here = [file.id for file in part if self._index.is_still(file)]
                gone += self._index.drop(here, "removed", None)
                found += here
            if aside is not None:
                gone = [self._moved(file, aside) for file in gone]
        self.delete(gone, seconds)
        if aside is not None:
            # Also without the directory's lock: no peer process knows the name.
            self._files.remove_tree(aside)
            self._files.end_aside(namespace, aside)
            with contextlib.suppress(OSError), self._sharing.changing(seconds):
                self._sharing.tidy(shards)
        left = {
            page
            for page, file in zip(found, gone, strict=True)
            if self._fs.exists(self._index.path_of(file))
        }
        return Cleared({*found}, {*found} - left)

    def _moved(self, file: PendingDeletion, aside: str) -> PendingDeletion:
        path = os.path.join(aside, *self._index.path_of(file).split(os.sep)[-2:])
        moved = file._replace(name=path)
        self._index.doomed.end(file.name)
        self._index.doomed.count(path, moved)
        return moved

    def delete(self, files: Sequence[PendingDeletion], seconds: float = WAIT_SECONDS) -> None:
        """Delete files that are doomed, and the directories that they leave empty; waits for the
        directory for about so many seconds."""
        allow, left = self._sharing.ledger.allow, list(files)
        # Each once: a directory that is held is not waited for again and again.
        with contextlib.suppress(OSError):
            while left:
                with self._sharing.changing(seconds):
                    count = allow(len(left)) or 1
                    while left and count:
                        self.delete_held(left[:count])
                        left = left[count:]
                        count = allow(len(left))

    def delete_held(self, files: Sequence[PendingDeletion]) -> None:
        doomed = self._index.doomed
        # A page has the name again: not one of a file that was set aside.
        named_again = set(
            filter(
                self._index.is_indexed,
                (file.name for file in files if isinstance(file.name, PageName)),
            )
        )
        doomed.end(*named_again)
        leaving = [file for file in files if file.name not in named_again]
        pages = tuple(file.page for file in leaving if file.page is not None)
        if pages:
            self._sharing.tell(Removing(pages))
        gone, shards = [], set()
        for file in leaving:
            path = self._index.path_of(file)
            # One that fails goes to the end of the line.
            doomed.count(file.name, file)
            with contextlib.suppress(OSError):
                self._fs.remove(path)
                doomed.end(file.name)
                gone.append(file)
                shards.add(os.path.dirname(path))
        self._sharing.tidy(shards)
        removed = ((file.page, file.why) for file in gone if file.page is not None)
        self._sharing.tell(
            *(Removed(p, why) for p, why in removed if not self._index.is_indexed(p.name))
        )

    def retry(self) -> None:
        self.delete(list(self._index.doomed.values())[:RETRIED])
