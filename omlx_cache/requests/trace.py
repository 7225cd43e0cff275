"""A trace of requests for `omlx-cache simulate`: counts, times and salted names of blocks; no text,
no tokens, no keys.

One JSON document a line. The names of a part of the file are salted by bytes that only the process
has which writes it: who guesses a prompt cannot check that against the file. Another part, of
another process or a later start, names the same blocks otherwise.
"""

import base64
import binascii
import hashlib
import json
import logging
import os
import secrets
import stat
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.private import is_private

_log = logging.getLogger(__name__)

FORMAT = "omlx_cache_trace"
VERSION = 1
BLOCK_BYTES = 6
"""Of a salted digest: two of a million blocks share a name once in 500 files."""
LIMIT_BYTES = 256 << 20
"""No file grows beyond this."""
NAMESPACES = 256
"""Of so many models and tenants the size of a token is told."""
WAITING = 1024
"""Requests that may wait for the disk; more are left out."""


def block_names(text: str) -> list[bytes]:
    """Return the names in a line's `blocks`; raises ValueError for what is none."""
    try:
        names = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"blocks are not base64: {error}") from None
    if len(names) % BLOCK_BYTES:
        raise ValueError(f"blocks have {len(names)} bytes, not a multiple of {BLOCK_BYTES}")
    return [names[i : i + BLOCK_BYTES] for i in range(0, len(names), BLOCK_BYTES)]


class RequestTrace:
    """Appends requests to a private file, on a thread of its own while there are any. No method
    raises or waits, but `close`; what the disk refuses is left out, and said once.

    `_lock` guards `_lines`, `_writing`, `_left_out` and `_said`; no I/O under it. `_started`
    belongs to the thread that writes; each operation on `_sizes` is atomic.
    """

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self._limit = limit_bytes
        self._salt = secrets.token_bytes(32)
        self._part = secrets.token_hex(6)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._lines: deque[str] = deque()
        self._writing = False
        self._left_out = 0
        self._said = False
        self._started = False
        self._sizes: dict[BlockKey, int] = {}

    @property
    def left_out(self) -> int:
        """How many requests are not in the file."""
        with self._lock:
            return self._left_out

    @uninterrupted
    def add(
        self,
        asked_at: float,
        chain: KeyChain,
        tokens_in: int,
        tokens_out: int,
        ended: str = "",
    ) -> None:
        """Note a request that has ended, with the complete blocks of its sequence."""
        try:
            line = {
                "part": self._part,
                "at": round(asked_at, 3),
                "model": self._name(chain.namespace).hex(),
                "in": tokens_in,
                "out": tokens_out,
                "block_size": chain.block_size,
                "bytes_per_token": self._sizes.get(chain.namespace),
                "ended": ended or None,
                "blocks": self._blocks(chain, len(chain)),
            }
            self._queue(json.dumps(line, separators=(",", ":")))
        except Exception:
            _log.exception("a request is not in the trace")

    @uninterrupted
    def add_stored(self, chain: KeyChain, end: int) -> None:
        """Note the complete blocks of a sequence that was stored up to `end`, of a request that is
        added with its prompt's only, before or after."""
        try:
            line = {"part": self._part, "stored": self._blocks(chain, end)}
            self._queue(json.dumps(line, separators=(",", ":")))
        except Exception:
            _log.exception("a stored sequence is not in the trace")

    def note_size(self, namespace: BlockKey, bytes_per_token: int) -> None:
        """Note what a token of a namespace takes, in the layers that keep all of them."""
        if bytes_per_token and (namespace in self._sizes or len(self._sizes) < NAMESPACES):
            self._sizes[namespace] = bytes_per_token

    def close(self, timeout: float) -> None:
        """Block until what was added is written, for `timeout` seconds at most."""
        with self._idle:
            self._idle.wait_for(lambda: not self._writing, timeout)

    def _blocks(self, chain: KeyChain, end: int) -> str:
        keys = chain.boundaries(0, min(end, len(chain)) // chain.block_size)[1:]
        return base64.b64encode(b"".join(map(self._name, keys))).decode()

    def _name(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=BLOCK_BYTES).digest()

    def _queue(self, line: str) -> None:
        with self._lock:
            if len(self._lines) >= WAITING:
                self._left_out += 1
                return
            self._lines.append(line)
            if self._writing:
                return
            self._writing = True
        # It ends when nothing is left: a store that is never closed leaves no thread behind.
        threading.Thread(target=self._write_all, name="omlx-cache-trace", daemon=True).start()

    def _write_all(self) -> None:
        while True:
            with self._idle:
                lines = list(self._lines)
                self._lines.clear()
                if not lines:
                    self._writing = False
                    self._idle.notify_all()
                    return
            try:
                written = self._append(lines)
                why = "" if written else f"it has {self._limit} bytes"
            except OSError as error:
                written, why = False, error.strerror or str(error)
            if not written:
                self._leave_out(len(lines), why)

    def _append(self, lines: Sequence[str]) -> bool:
        """Write lines in one piece; False when the file is full. Raises OSError."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path, flags | os.O_NONBLOCK, 0o600)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or not is_private(info):
                raise PermissionError(1, "it is not a file of this user's alone")
            head = [] if self._started else [json.dumps({FORMAT: VERSION, "part": self._part})]
            data = "".join(f"{line}\n" for line in [*head, *lines]).encode()
            if info.st_size + len(data) > self._limit:
                return False
            if info.st_mode & 0o077:
                os.fchmod(fd, 0o600)
            # What a full disk took of it must not run into the next line.
            if os.write(fd, data) < len(data):
                os.ftruncate(fd, info.st_size)
                raise OSError(28, "no room on the disk")
            self._started = True
            return True
        finally:
            os.close(fd)

    def _leave_out(self, count: int, why: str) -> None:
        with self._lock:
            self._left_out += count
            said, self._said = self._said, True
        if not said:
            _log.warning("requests are not added to the trace %s: %s", self.path, why)
