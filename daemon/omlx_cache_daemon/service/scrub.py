"""Checks the checksums of all pages, at a rate, now and again; goes on where it was after a
restart."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.checking import Checked, Pace, PageChecker, check_pages
from omlx_cache_daemon.service.figures import Figures
from omlx_cache_daemon.service.state import KeeperState, StateFile
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.format.names import StoredPage

_log = logging.getLogger(__name__)

FILE_BYTES = 64 * 1024
"""What a file counts for beside its bytes: tiny ones take a processor's time, not the disk's."""
NOTED_SECONDS = 30.0
"""Work of so long is done again after a restart, at most."""
EMPTY_SECONDS = 3600.0
"""For so long nothing is looked for in a directory without pages."""
FAILED_SECONDS = 600.0
"""For so long a directory is left alone that cannot be listed."""

Drop = Callable[[StoredPage, Callable[[], bool]], bool]


class Scrubber:
    """One pass after the other over a directory's pages, each on a thread that ends with it.

    One thread starts passes, by `step`. `_pace` is theirs in common; a pass that fails sets
    `_not_before`. `drop` deletes a damaged page and tells others.
    """

    def __init__(
        self, directory: Path, fs: FileSystem, state: StateFile, figures: Figures, drop: Drop
    ) -> None:
        self._directory = directory
        self._fs = fs
        self._state = state
        self._figures = figures
        self._drop = drop
        self._pace = Pace()
        self._thread: threading.Thread | None = None
        self._not_before = 0.0

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def has_rate(self, bytes_per_second: float) -> None:
        """Go at another rate from now on, in the middle of a pass too."""
        self._pace.bytes_per_second = bytes_per_second

    def step(self, days: float) -> float:
        """Begin a pass if one is due; return in how many seconds to ask again."""
        kept = self._state.kept
        if self.is_running or self._pace.is_stopped or not self._pace.bytes_per_second:
            return days * 86_400
        now = time.time()
        # A clock that was set back does not put it off for longer than that.
        since = max(0.0, now - kept.finished) if kept.finished <= now else 0.0
        wait = 0.0 if kept.after or not kept.finished else days * 86_400 - since
        wait = max(wait, self._not_before - time.monotonic())
        if wait > 0:
            return wait
        if not kept.began:
            self._state.note(began=now)
        self._thread = threading.Thread(target=self._pass, name="omlx-cached-scrub", daemon=True)
        self._thread.start()
        return days * 86_400

    def stop(self, timeout: float) -> None:
        """End a pass under way; the next service goes on with it."""
        self._pace.stop()
        if self._thread is not None:
            self._thread.join(timeout)

    def _pass(self) -> None:
        try:
            self._check_all()
        except OSError as error:
            _log.warning("checksums are not checked: %s", error.strerror or error)
            self._not_before = time.monotonic() + FAILED_SECONDS

    def _check_all(self) -> None:
        pace, noted, place = self._pace, time.monotonic(), self._state.kept.after
        pages = nbytes = 0
        found = check_pages(self._directory, after=place or None, pace=pace, fs=self._fs)
        with contextlib.closing(found):  # type: ignore[type-var]
            for checked in found:
                if checked.verdict != "foreign":
                    self._take(checked)
                    place, pages, nbytes = checked.place, pages + 1, nbytes + checked.nbytes
                if time.monotonic() - noted > NOTED_SECONDS:
                    self._note(place, pages, nbytes)
                    noted, pages, nbytes = time.monotonic(), 0, 0
                if not pace.wait(FILE_BYTES):
                    break
        kept = self._note(place, pages, nbytes)
        if pace.is_stopped or not os.path.isdir(self._directory):
            return
        if not kept.pages:
            # The first ones are not to wait for days.
            self._not_before = time.monotonic() + EMPTY_SECONDS
            return
        self._figures.add("passes")
        size = format_size(kept.nbytes)
        _log.info("checked %d pages, %s: %d were damaged", kept.pages, size, kept.damaged)
        self._state.note(after="", began=0.0, finished=time.time(), pages=0, nbytes=0, damaged=0)

    def _take(self, checked: Checked) -> None:
        self._figures.add("scrubbed_pages")
        self._figures.add("scrubbed_bytes", checked.nbytes)
        if checked.verdict == "unread":
            self._figures.add("unread_pages")
            _log.warning("%s: %s", checked.file, checked.trouble)
        page = checked.page
        if checked.verdict == "damaged" and page is not None:
            _log.warning("%s is damaged: %s", checked.file, checked.trouble)
            if self._drop(page, lambda: self._is_damaged(checked, page)):
                self._figures.add("damaged_pages")
                self._state.note(damaged=self._state.kept.damaged + 1)

    def _is_damaged(self, checked: Checked, page: StoredPage) -> bool:
        shard, file = os.path.split(checked.file)
        with PageChecker(self._fs, self._pace) as checker:
            again = checker.check(page.namespace, shard, file)
        return again is not None and again.verdict == "damaged" and not self._pace.is_stopped

    def _note(self, place: str, pages: int, nbytes: int) -> KeeperState:
        kept = self._state.kept
        return self._state.note(after=place, pages=kept.pages + pages, nbytes=kept.nbytes + nbytes)
