"""A trace of requests for `omlx-cache simulate`: counts, times and salted names of blocks; no text,
no tokens, no keys.

One JSON document a line. Names are salted by bytes that only a part's writer has: a guessed prompt
cannot be checked against the file. Another part, of another process or a later start, names the
same blocks otherwise.
"""

import base64
import errno
import hashlib
import json
import logging
import os
import secrets
import stat
import threading
from pathlib import Path

from omlx_cache_storage.cold.disk import is_private
from omlx_cache_storage.io_threads import ReaderPool
from omlx_cache_storage.keys import BlockKey, KeyChain

_log = logging.getLogger(__name__)

FORMAT = "omlx_cache_trace"
VERSION = 1
BLOCK_BYTES = 6
"""Of a salted digest: two of a million blocks share a name once in 500 files."""
LIMIT_BYTES = 256 << 20
"""No file grows beyond this."""
NAMESPACES = 256
"""The size of a token is written for so many models and tenants."""
WAITING = 1024
"""Requests that may wait for the disk; more are left out."""


class RequestTrace:
    """Appends requests to a private file, on a thread of its own. No method raises or waits, but
    `close`; a request that the disk rejects is left out, and logged once.

    `_room` counts the lines that may still wait. `_started` belongs to the thread that writes; each
    operation on `_said` and `_sizes` is atomic.
    """

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self._limit = limit_bytes
        self._salt = secrets.token_bytes(32)
        self._part = secrets.token_hex(6)
        self._pool = ReaderPool(1, "omlx-cache-trace")
        self._room = threading.BoundedSemaphore(WAITING)
        self._said = False
        self._started = False
        self._sizes: dict[BlockKey, int] = {}

    def add(
        self,
        asked_at: float,
        chain: KeyChain,
        tokens_in: int,
        tokens_out: int,
        ended: str = "",
    ) -> None:
        self._queue(
            {
                "at": round(asked_at, 3),
                "model": self._name(chain.namespace).hex(),
                "in": tokens_in,
                "out": tokens_out,
                "block_size": chain.block_size,
                "bytes_per_token": self._sizes.get(chain.namespace),
                "ended": ended or None,
            },
            "blocks",
            chain,
            len(chain),
        )

    def add_stored(self, chain: KeyChain, end: int) -> None:
        """Note the complete blocks of a sequence that was stored up to `end`. Its request is added,
        before or after, with its prompt's blocks only."""
        self._queue({}, "stored", chain, end)

    def note_size(self, namespace: BlockKey, bytes_per_token: int) -> None:
        if bytes_per_token and (namespace in self._sizes or len(self._sizes) < NAMESPACES):
            self._sizes[namespace] = bytes_per_token

    def close(self, timeout: float) -> None:
        """Block until all added requests are written, for `timeout` seconds at most; the last
        call."""
        self._pool.stop(timeout, cancel_futures=False)

    def _name(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=BLOCK_BYTES).digest()

    def _queue(self, figures: dict[str, object], field: str, chain: KeyChain, end: int) -> None:
        try:
            keys = chain.boundaries(0, min(end, len(chain)) // chain.block_size)[1:]
            blocks = base64.b64encode(b"".join(map(self._name, keys))).decode()
            text = json.dumps({"part": self._part, **figures, field: blocks}, separators=(",", ":"))
        except Exception:
            _log.exception("a sequence is not in the trace")
            return
        if not self._room.acquire(blocking=False):
            self._leave_out("the disk is too slow")
            return
        try:
            self._pool.submit(self._write, text)
        except RuntimeError:
            # The store may be closed, or the system have no thread left.
            self._room.release()

    def _write(self, line: str) -> None:
        try:
            self._append(line)
        except OSError as error:
            self._leave_out(error.strerror or str(error))
        finally:
            self._room.release()

    def _append(self, line: str) -> None:
        """Write a line in one piece; raises OSError when the file is full too."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path, flags | os.O_NONBLOCK, 0o600)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or not is_private(info):
                raise PermissionError(1, "it is not a file of this user's alone")
            head = [] if self._started else [json.dumps({FORMAT: VERSION, "part": self._part})]
            data = "".join(f"{text}\n" for text in [*head, line]).encode()
            if info.st_size + len(data) > self._limit:
                raise OSError(errno.EFBIG, f"it has {self._limit} bytes")
            if info.st_mode & 0o077:
                os.fchmod(fd, 0o600)
            # The part of a line that a full disk took must not run into the next line.
            if os.write(fd, data) < len(data):
                os.ftruncate(fd, info.st_size)
                raise OSError(28, "no room on the disk")
            self._started = True
        finally:
            os.close(fd)

    def _leave_out(self, why: str) -> None:
        said, self._said = self._said, True
        if not said:
            _log.warning("requests are not added to the trace %s: %s", self.path, why)
