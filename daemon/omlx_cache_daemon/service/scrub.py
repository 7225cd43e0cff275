"""Checks the checksums of all pages, at a rate, now and again; `keeper.json` in the directory says
who keeps it and how far that has come, so that a restart goes on there."""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from omlx_cache.control.answers import read
from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.checking import Checked, Pace, check_page, check_pages
from omlx_cache_daemon.errors import CommandError
from omlx_cache_storage.cold.disk import Descriptor, FileSystem
from omlx_cache_storage.format.names import KEEPER_FILE, StoredPage

_log = logging.getLogger(__name__)

MOST_BYTES = 4096
FILE_BYTES = 64 * 1024
"""What a file counts for beside its bytes: tiny ones take a processor's time, not the disk's."""
NOTED_SECONDS = 30.0
"""Work of so long is done again after a restart, at most."""
EMPTY_SECONDS = 3600.0
"""For so long nothing is looked for in a directory without pages."""
FAILED_SECONDS = 600.0
"""For so long a directory is left alone that cannot be listed."""
_DAY = 86_400

Drop = Callable[[StoredPage, Callable[[], bool]], bool]


class AlreadyKept(CommandError):
    """Another service keeps the directory."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class KeeperState:
    """What outlives the service. Times are seconds since 1970, 0 for never; `after`: the page that
    was checked last in a pass under way, "" between passes; `budget_bytes`: the budget that the
    service gave the directory, 0 for none."""

    pid: int = 0
    after: str = ""
    began: float = 0.0
    finished: float = 0.0
    pages: int = 0
    nbytes: int = 0
    damaged: int = 0
    budget_bytes: int = 0


class StateFile:
    """The file of one directory. It is held locked for as long as the service runs, and is written
    in place: one that is torn is an empty one, and costs a pass that begins anew. Nothing here is
    made durable. `_lock` guards `kept` and the writing of it; `take` and `close` belong to one
    thread."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._path = os.path.join(directory, KEEPER_FILE)
        self._fs = fs
        self._open = Descriptor(-1)
        self._lock = threading.Lock()
        self.kept = KeeperState()

    @property
    def is_held(self) -> bool:
        """True while the directory has this service's file."""
        with contextlib.suppress(OSError):
            return self._open.fd >= 0 and self._fs.is_at(self._open.fd, self._path)
        return True

    def take(self) -> KeeperState:
        """Have the file, and return what it says; raises AlreadyKept when another service has it,
        OSError as the disk does. What is known goes on where the file is gone."""
        if self.is_held:
            return self.kept
        # Nothing stays open for writing: a disk is remounted read-only whoever follows here.
        self._fs.close(self._fs.open_shared(self._path))
        opened = Descriptor(self._fs.open_shared(self._path, writing=False), locked=True)
        is_ours = self._fs.try_lock(opened.fd)
        said = _parsed(self._fs.peek(opened.fd, MOST_BYTES, 0))
        if not is_ours:
            opened.close()
            raise AlreadyKept(
                f"another omlx-cached (process {said.pid}) keeps {os.path.dirname(self._path)}; "
                "one is enough: end that one first, or name another directory (--cold-dir)"
            )
        self._open.close()
        self._open, self.kept = opened, said
        return self.note(pid=os.getpid())

    def note(self, **changes: object) -> KeeperState:
        """Change what is kept; what the disk does not take is kept in memory. Raises nothing."""
        with self._lock:
            self.kept = replace(self.kept, **changes)  # type: ignore[arg-type]
            raw = json.dumps(asdict(self.kept)).encode()
            if self.is_held and len(raw) <= MOST_BYTES:
                with contextlib.suppress(OSError):
                    written = Descriptor(self._fs.open_shared(self._path))
                    with contextlib.closing(written):
                        self._fs.poke(written.fd, raw.ljust(MOST_BYTES), 0)
            return self.kept

    def close(self) -> None:
        """Leave the directory to another service."""
        if self._open.fd >= 0:
            self.note(pid=0)
        self._open.close()


def _parsed(raw: bytes) -> KeeperState:
    """Return what a file says, nothing where it cannot be understood."""
    with contextlib.suppress(ValueError, RecursionError):
        return read(KeeperState, json.loads(raw))
    return KeeperState()


class Scrubber:
    """One pass after the other over a directory's pages, each on a thread that ends with it.

    One thread starts passes, by `step`. `pace` is theirs in common; a pass that fails sets
    `_not_before`. `drop` deletes a damaged page and tells others.
    """

    def __init__(
        self, directory: Path, fs: FileSystem, state: StateFile, figures: dict[str, int], drop: Drop
    ) -> None:
        self._directory = directory
        self._fs = fs
        self._state = state
        self._figures = figures
        self._drop = drop
        self.pace = Pace()
        self._thread: threading.Thread | None = None
        self._not_before = 0.0

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def step(self, days: float) -> float:
        """Begin a pass if one is due; return in how many seconds to ask again."""
        kept, now = self._state.kept, time.time()
        if self.is_running or self.pace.is_stopped or not self.pace.bytes_per_second:
            return days * _DAY
        wait = self._not_before - time.monotonic()
        if kept.finished and not kept.after:
            # A clock that was set back does not put it off for longer than that.
            since = now - kept.finished if kept.finished <= now else 0.0
            wait = max(wait, days * _DAY - since)
        if wait > 0:
            return wait
        if not kept.began:
            self._state.note(began=now)
        self._thread = threading.Thread(target=self._pass, name="omlx-cached-scrub", daemon=True)
        self._thread.start()
        return days * _DAY

    def stop(self, timeout: float) -> None:
        """End a pass under way; the next service goes on with it."""
        self.pace.stop()
        if self._thread is not None:
            self._thread.join(timeout)

    def _pass(self) -> None:
        try:
            self._check_all()
        except OSError as error:
            _log.warning("checksums are not checked: %s", error.strerror or error)
            self._not_before = time.monotonic() + FAILED_SECONDS

    def _check_all(self) -> None:
        kept, noted = self._state.kept, time.monotonic()
        found = check_pages(self._directory, after=kept.after, pace=self.pace, fs=self._fs)
        for checked in found:
            kept = replace(
                kept, after=checked.place, pages=kept.pages + 1, nbytes=kept.nbytes + checked.nbytes
            )
            kept = self._take(checked, kept)
            if time.monotonic() - noted > NOTED_SECONDS:
                self._note(kept)
                noted = time.monotonic()
            if not self.pace.wait(FILE_BYTES):
                break
        self._note(kept)
        if self.pace.is_stopped or not os.path.isdir(self._directory):
            return
        if not kept.pages:
            # The first ones are not to wait for days.
            self._not_before = time.monotonic() + EMPTY_SECONDS
            return
        self._figures["passes"] += 1
        size = format_size(kept.nbytes)
        _log.info("checked %d pages, %s: %d were damaged", kept.pages, size, kept.damaged)
        self._state.note(after="", began=0.0, finished=time.time(), pages=0, nbytes=0, damaged=0)

    def _note(self, kept: KeeperState) -> None:
        self._state.note(
            after=kept.after, pages=kept.pages, nbytes=kept.nbytes, damaged=kept.damaged
        )

    def _take(self, checked: Checked, kept: KeeperState) -> KeeperState:
        """Count a page, and have a damaged one deleted."""
        self._figures["scrubbed_pages"] += 1
        self._figures["scrubbed_bytes"] += checked.nbytes
        page = checked.page
        if checked.verdict != "good":
            _log.warning("%s is %s: %s", checked.file, checked.verdict, checked.trouble)
        if checked.verdict == "unread":
            self._figures["unread_pages"] += 1
        if checked.verdict != "damaged" or page is None:
            return kept
        if not self._drop(page, lambda: self._is_damaged(checked.file, page)):
            return kept
        self._figures["damaged_pages"] += 1
        return replace(kept, damaged=kept.damaged + 1)

    def _is_damaged(self, file: str, page: StoredPage) -> bool:
        again = check_page(file, page, self.pace, self._fs)
        return again is not None and again.verdict == "damaged" and not self.pace.is_stopped
