"""`keeper.json` in the cold directory: which service keeps it, and how far its checks have come.

The file is held locked for as long as the service runs, and is written in place: one that is torn
is an empty one, and costs a pass over the pages that begins anew. Nothing here is made durable.
"""

import contextlib
import json
import os
import threading
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from omlx_cache_daemon.service.errors import AlreadyKept
from omlx_cache_storage.cold.disk import Descriptor, FileSystem
from omlx_cache_storage.format.names import KEEPER_FILE

MOST_BYTES = 4096


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
    """The file of one directory. `_lock` guards `_kept` and the writing of it; `take` and `close`
    belong to one thread."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._path = os.path.join(directory, KEEPER_FILE)
        self._fs = fs
        self._open = Descriptor(-1)
        self._kept = KeeperState()
        self._lock = threading.Lock()

    @property
    def kept(self) -> KeeperState:
        return self._kept

    @property
    def is_held(self) -> bool:
        """True while the directory has this service's file."""
        try:
            return self._open.fd >= 0 and self._fs.is_at(self._open.fd, self._path)
        except OSError:
            return self._open.fd >= 0

    def take(self) -> KeeperState:
        """Have the file, and return what it says; raises AlreadyKept when another service has it,
        OSError as the disk does. What is known goes on where the file is gone."""
        if self.is_held:
            return self._kept
        # Nothing stays open for writing: a disk is remounted read-only whoever follows here.
        self._fs.close(self._fs.open_shared(self._path))
        opened = Descriptor(self._fs.open_shared(self._path, writing=False), locked=True)
        if not self._fs.try_lock(opened.fd):
            other = _parsed(self._fs.peek(opened.fd, MOST_BYTES, 0)).pid
            opened.close()
            raise AlreadyKept(
                f"another omlx-cached (process {other}) keeps {os.path.dirname(self._path)}; one "
                "is enough: end that one first, or name another directory (--cold-dir)"
            )
        self._open.close()
        self._open = opened
        self._kept = _parsed(self._fs.peek(opened.fd, MOST_BYTES, 0))
        self.note(pid=os.getpid())
        return self._kept

    def note(self, **changes: object) -> KeeperState:
        """Change what is kept; what the disk does not take is kept in memory. Raises nothing."""
        with self._lock:
            self._kept = replace(self._kept, **changes)  # type: ignore[arg-type]
            raw = json.dumps(asdict(self._kept)).encode()
            if self.is_held and len(raw) <= MOST_BYTES:
                with contextlib.suppress(OSError):
                    self._write(raw.ljust(MOST_BYTES))
            return self._kept

    def _write(self, raw: bytes) -> None:
        fd = self._fs.open_shared(self._path)
        try:
            self._fs.poke(fd, raw, 0)
        finally:
            self._fs.close(fd)

    def close(self) -> None:
        """Leave the directory to another service."""
        if self._open.fd >= 0:
            self.note(pid=0)
        self._open.close()


def _parsed(raw: bytes) -> KeeperState:
    """Return what a file says, as far as it can be understood."""
    try:
        said = json.loads(raw)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return KeeperState()
    known = {}
    for field in fields(KeeperState):
        value, default = said.get(field.name), field.default
        wanted = (int, float) if isinstance(default, float) else type(default)
        if isinstance(value, wanted) and not isinstance(value, bool):
            known[field.name] = value
    return KeeperState(**known)  # type: ignore[arg-type]
