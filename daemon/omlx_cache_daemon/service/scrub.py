"""Checks the checksums of all pages, at a rate, now and again. `keeper.json` in the directory says
which service keeps it and how far the pass has come, so that a restart goes on there."""

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from omlx_cache.control.serialization import read
from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.checking import Checked, check_pages, remove_damaged
from omlx_cache_daemon.errors import CommandError
from omlx_cache_storage.cold.disk import Descriptor, FileSystem
from omlx_cache_storage.format.names import KEEPER_FILE

_log = logging.getLogger(__name__)

MOST_BYTES = 4096
TURN_SECONDS = 0.25
"""Pages are read for about so long, and then as long not as the rate demands."""
FILE_BYTES = 64 * 1024
"""Bytes that a file counts for beside its own: tiny files take a processor's time, not the
disk's."""
NOTED_SECONDS = 30.0
"""Work of so long is done again after a restart, at most."""
EMPTY_SECONDS = 3600.0
"""For so long nothing is looked for in a directory without pages."""
FAILED_SECONDS = 600.0
"""A directory that cannot be listed or changed is tried again after so long."""
_DAY = 86_400


class AlreadyKept(CommandError):
    """Another service keeps the directory."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class KeeperState:
    """The state that outlives the service. Times are seconds since 1970, 0 for never. `after`: the
    page that was checked last in an unfinished pass, "" between passes. `budget_bytes`: the budget
    that the service gave the directory, 0 for none."""

    pid: int = 0
    after: str = ""
    began: float = 0.0
    finished: float = 0.0
    pages: int = 0
    nbytes: int = 0
    damaged: int = 0
    budget_bytes: int = 0


class StateFile:
    """The file of one directory; belongs to one thread, but for `kept`, which any may read. It is
    locked for as long as the service runs, and is written in place. A torn file counts as empty,
    and costs a pass that begins anew. Nothing here is made durable."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._path = os.path.join(directory, KEEPER_FILE)
        self._fs = fs
        self._open = Descriptor(-1)
        self.kept = KeeperState()

    @property
    def is_held(self) -> bool:
        with contextlib.suppress(OSError):
            return self._open.fd >= 0 and self._fs.is_at(self._open.fd, self._path)
        return True

    def take(self) -> KeeperState:
        """Lock the file, and return its state; raises AlreadyKept when another service has it,
        OSError as the disk does. Without the file the last state goes on."""
        if self.is_held:
            return self.kept
        # Nothing stays open for writing: it would keep a disk from being remounted read-only.
        self._fs.close(self._fs.open(self._path, writing=True))
        opened = Descriptor(self._fs.open(self._path), locked=True)
        is_ours = self._fs.lock(opened.fd)
        said = _parsed(self._fs.peek(opened.fd, MOST_BYTES, 0))
        if not is_ours:
            opened.close()
            raise AlreadyKept(
                f"another omlx-cached (process {said.pid}) keeps {os.path.dirname(self._path)}; "
                "one is enough: end that one first, or name another directory (--cold-dir)"
            )
        self._open.close()
        self._open = opened
        self.kept = replace(said, pid=os.getpid())
        self.save()
        return self.kept

    def note(self, **changes: object) -> None:
        """The file has the change after the next `save`."""
        self.kept = replace(self.kept, **changes)  # type: ignore[arg-type]

    def save(self) -> None:
        """Raises nothing."""
        raw = json.dumps(asdict(self.kept)).encode()
        if self.is_held and len(raw) <= MOST_BYTES:
            with contextlib.suppress(OSError):
                written = Descriptor(self._fs.open(self._path, writing=True))
                with contextlib.closing(written):
                    self._fs.poke(written.fd, raw.ljust(MOST_BYTES), 0)

    def close(self) -> None:
        if self._open.fd >= 0:
            self.note(pid=0)
            self.save()
        self._open.close()


def _parsed(raw: bytes) -> KeeperState:
    with contextlib.suppress(ValueError, RecursionError):
        return read(KeeperState, json.loads(raw))
    return KeeperState()


class Scrubber:
    """One pass after the other over a directory's pages, a turn at a time; belongs to one thread.

    `_pass` yields the remaining pages of an unfinished pass. Nothing is done before `_not_before`,
    and before the rate allows the bytes of the last turn, which began at `_turned`.
    """

    def __init__(
        self, directory: Path, fs: FileSystem, state: StateFile, figures: dict[str, int]
    ) -> None:
        self._directory = directory
        self._fs = fs
        self._state = state
        self._figures = figures
        self._pass: Iterator[Checked] | None = None
        self._not_before = self._saved = self._turned = 0.0
        self._nbytes = 0

    @property
    def is_running(self) -> bool:
        return self._pass is not None

    def step(self, days: float, bytes_per_second: float) -> float:
        """Read some pages if that is due; return in how many seconds to go on."""
        kept, now = self._state.kept, time.time()
        wait = self._wait(bytes_per_second) if bytes_per_second else days * _DAY
        if kept.finished and not kept.after:
            # A clock that was set back does not put it off for longer than that.
            since = now - kept.finished if kept.finished <= now else 0.0
            wait = max(wait, days * _DAY - since)
        if wait > 0:
            return wait
        if not kept.began:
            self._state.note(began=now)
        try:
            self._turn(bytes_per_second)
        except OSError as error:
            _log.warning("checksums are not checked: %s", error.strerror or error)
            self._pass, self._not_before = None, time.monotonic() + FAILED_SECONDS
        return max(0.0, self._wait(bytes_per_second))

    def _wait(self, bytes_per_second: float) -> float:
        due = max(self._not_before, self._turned + self._nbytes / bytes_per_second)
        return due - time.monotonic()

    def _turn(self, bytes_per_second: float) -> None:
        """Raises OSError."""
        if self._pass is None:
            self._pass = check_pages(self._directory, after=self._state.kept.after, fs=self._fs)
        self._turned, self._nbytes = time.monotonic(), 0
        ends = self._turned + TURN_SECONDS
        while self._nbytes < TURN_SECONDS * bytes_per_second and time.monotonic() < ends:
            checked = next(self._pass, None)
            if checked is None:
                self._finish()
                return
            self._take(checked)
            self._nbytes += checked.nbytes + FILE_BYTES
        if self._turned - self._saved > NOTED_SECONDS:
            self._saved = self._turned
            self._state.save()

    def _take(self, checked: Checked) -> None:
        """Count a page, and delete a damaged one, of which every process hears. A folder that
        cannot be listed is only reported: a pass cannot go on from it."""
        if checked.verdict != "good":
            _log.warning("%s is %s: %s", checked.file, checked.verdict, checked.trouble)
        if checked.page is None:
            return
        kept, damaged = self._state.kept, 0
        if checked.verdict == "damaged":
            damaged = remove_damaged(self._directory, [checked.page], self._fs)
        self._figures["damaged_pages"] += damaged
        self._figures["unread_pages"] += checked.verdict == "unread"
        self._figures["scrubbed_pages"] += 1
        self._figures["scrubbed_bytes"] += checked.nbytes
        self._state.note(
            after=checked.place,
            pages=kept.pages + 1,
            nbytes=kept.nbytes + checked.nbytes,
            damaged=kept.damaged + damaged,
        )

    def _finish(self) -> None:
        """End a pass; one over nothing is none, so that the first pages need not wait for days."""
        kept, self._pass = self._state.kept, None
        if not kept.pages or not os.path.isdir(self._directory):
            self._not_before = time.monotonic() + EMPTY_SECONDS
            return
        self._figures["passes"] += 1
        size = format_size(kept.nbytes)
        _log.info("checked %d pages, %s: %d were damaged", kept.pages, size, kept.damaged)
        self._state.note(after="", began=0.0, finished=time.time(), pages=0, nbytes=0, damaged=0)
        self._state.save()
