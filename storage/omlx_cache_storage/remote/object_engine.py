"""Object stores and shared directories as an engine: S3 and what speaks like it, and a file system.

A value is one object, read in stretches; a member of a set is an empty object below the set's name.
What is made below a directory has the permissions that this process's umask leaves: for machines
with several users, make the directory with a group of theirs (`chmod g+ws`).
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import obstore
from obstore import exceptions as failures
from obstore.store import LocalStore, S3Store

from omlx_cache_storage.page import Buffer
from omlx_cache_storage.readers import ReaderPool, note_answer, result_along
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import MEMBERS, Part, RemoteError
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.reasons import Trouble

T = TypeVar("T")
ASKS_TOGETHER = 32
"""Requests of one phase: each name takes one, and costs."""
READ_SECONDS = 60.0
"""What reading a stretch of a value may take at least, while some of it comes."""
WRITE_SECONDS = 15.0
"""What a write may take at least: no request waits for it, and values are written in one piece."""
_CHUNK_BYTES = 1 << 20
"""So many come within the time in which something has to: less is computed sooner."""

MISSING = (failures.NotFoundError, FileNotFoundError)
TAKEN = (failures.AlreadyExistsError, FileExistsError)
_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_BEYOND = re.compile(r"source: InvalidRange \{")
_STATUSES: dict[int, Trouble] = {
    401: "auth",
    403: "auth",
    408: "timeout",
    429: "throttled",
    503: "throttled",
    504: "timeout",
    507: "full",
}
_KINDS: tuple[tuple[str, Trouble], ...] = (
    ("TimedOut", "timeout"),
    ("kind: Timeout", "timeout"),
    ("kind: Connect,", "refused"),
    ("kind: Interrupted", "lost"),
    ("ConnectionReset", "lost"),
    ("kind: Request", "lost"),
    ("kind: Body", "lost"),
    ("StorageFull", "full"),
    ("QuotaExceeded", "full"),
)


class ObjectEngine:
    """Values in a bucket or below a directory. Connects when it is first asked, tries nothing
    again, and ends each request in time; a file system that hangs cannot be made to.

    The threads of `_pool` carry out what one call asks at once. `_opened`, `_creates` and `_closed`
    are each set once, by any thread.
    """

    part_bytes: int | None = None
    asks_together = ASKS_TOGETHER

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._open = partial(_open, address, options)
        self._opened: _Stores | None = None
        self._directory = Path(address.path) if address.kind == "file" else None
        self._pool = ReaderPool(max(options.connections, ASKS_TOGETHER), "omlx-cache-remote-http")
        self._creates = True
        self._closed = False

    def ping(self) -> None:
        self._guarded(partial(self._head, "ping-that-is-not-there", 1))

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        calls: list[Callable[[], Any]] = [partial(self._head, name, nbytes) for name in names]
        calls += [partial(self._members, name) for name in sets]
        answers = self._together(calls)
        heads = [head or None for head in answers[: len(names)]]
        return heads, answers[len(names) :]

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        return self._together([partial(self._part, part) for part in parts])

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        body = b"".join(piece for pieces in parts for piece in pieces)
        return self._guarded(partial(self._put, name, body, replace=replace))

    def add(self, set_name: str, member: str) -> None:
        self._guarded(partial(self._put, f"{set_name}/{member}", b"", replace=True))

    def delete(self, names: Sequence[str]) -> int:
        found = self._together([partial(self._head, name, 1) for name in names])
        there = [name for name, head in zip(names, found, strict=True) if head is not None]
        if there:
            self._guarded(lambda: obstore.delete(self._stores.writes, there))
        return len(there)

    def close(self) -> None:
        self._closed = True
        self._pool.stop(0.0)

    @property
    def _stores(self) -> "_Stores":
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _put(self, name: str, body: bytes, *, replace: bool) -> bool:
        mode: Any = "overwrite" if replace or not self._creates else "create"
        try:
            obstore.put(self._stores.writes, name, body, mode=mode, use_multipart=False)
        except (failures.NotSupportedError, NotImplementedError):
            # A store of objects may not know how to make only what is not there.
            if mode == "overwrite":
                raise
            self._creates = False
            return self._head(name, 1) is None and self._put(name, body, replace=True)
        except Exception as error:
            if mode == "create" and is_taken(error):
                return False
            raise
        return True

    def _head(self, name: str, nbytes: int) -> bytes | None:
        found = self._some(self._stores.looks, Part(name, 0, 0, nbytes))
        return None if found is None else bytes(found)

    def _part(self, part: Part) -> Buffer | None:
        return self._some(self._stores.reads, part)

    def _some(self, store: Any, part: Part) -> Buffer | None:
        if self._directory is not None:
            return _stretch(self._directory / part.name, part)
        # No store is asked for no bytes; a value that ends before them is as short as it is.
        end = part.offset + max(1, part.nbytes)
        try:
            answer = obstore.get(store, part.name, options={"range": (part.offset, end)})
            return _received(answer, part.nbytes)
        except Exception as error:
            if is_absent(error):
                return None
            if is_beyond(error):
                return b""
            raise

    def _members(self, set_name: str) -> list[str]:
        found = []
        for batch in obstore.list(self._stores.looks, prefix=f"{set_name}/", chunk_size=MEMBERS):
            found += [str(one["path"]).rpartition("/")[2] for one in batch]
            if len(found) >= MEMBERS:
                break
        return sorted(found[:MEMBERS])

    def _together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return what calls return, all begun at once; when one fails, those that did not begin yet
        are not begun, and the others are left behind: a dead store costs one time-out."""
        if len(calls) < 2:
            return [self._guarded(call) for call in calls]
        try:
            futures = [self._pool.submit(self._guarded, call) for call in calls]
        except RuntimeError:
            raise RemoteError("lost", "the engine is closed") from None
        try:
            return [result_along(future) for future in futures]
        except CancelledError:
            raise RemoteError("lost", "the engine was closed") from None
        finally:
            for future in futures:
                future.cancel()

    def _guarded(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise RemoteError("lost", "the engine is closed")
        try:
            return call()
        except RemoteError:
            raise
        except Exception as error:
            raise trouble(error) from None


def _received(answer: Any, nbytes: int) -> memoryview:
    """Take an answer as it comes, which may take longer than one may wait for some of it."""
    start, end = answer.range
    memory = memoryview(bytearray(min(nbytes, end - start)))
    filled = 0
    for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
        if filled == memory.nbytes:
            break
        some = memoryview(chunk)[: memory.nbytes - filled]
        memory[filled : filled + some.nbytes] = some
        filled += some.nbytes
        note_answer()
    return memory[:filled]


def _at_once(path: str, flags: int) -> int:
    """Open whatever lies there: of a pipe one would wait for somebody who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _stretch(file: Path, part: Part) -> Buffer | None:
    """Read a stretch of a file. The client of object stores would wait for ever at a pipe."""
    try:
        with open(file, "rb", buffering=0, opener=_at_once) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            memory = memoryview(bytearray(max(0, min(part.nbytes, status.st_size - part.offset))))
            filled = 0
            opened.seek(part.offset)
            while count := opened.readinto(memory[filled : filled + _CHUNK_BYTES]):
                filled += count
                note_answer()
            return memory[:filled]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


class _Stores(NamedTuple):
    """One store, as it is used: each has time-outs of its own, and connections."""

    looks: Any
    reads: Any
    writes: Any


def _open(address: RemoteAddress, options: RemoteOptions) -> _Stores:
    if address.kind == "file":
        directory = Path(address.path)
        if not directory.parent.is_dir():
            # A share that is not mounted: made, it would fill this machine's own disk.
            raise RemoteError("refused", f"there is no {directory.parent}: make or mount it")
        local = LocalStore(directory, automatic_cleanup=False, mkdir=True)
        return _Stores(local, local, local)
    looking, silent = options.lookup_seconds, options.read_seconds
    return _Stores(
        _bucket(address, options, looking, silent=looking),
        _bucket(address, options, max(READ_SECONDS, silent), silent=silent),
        _bucket(address, options, max(WRITE_SECONDS, silent)),
    )


def _bucket(
    address: RemoteAddress, options: RemoteOptions, seconds: float, silent: float | None = None
) -> S3Store:
    """Return a store whose requests take at most so long, and bring something every so often."""
    client: Any = {} if silent is None else {"read_timeout": timedelta(seconds=silent)}
    endpoint = address.options.get("endpoint", "")
    client |= {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=min(seconds, options.read_seconds)),
        "timeout": timedelta(seconds=seconds),
    }
    given: dict[str, Any] = {}
    if endpoint:
        given["endpoint"] = endpoint
        given["virtual_hosted_style_request"] = False
    if "region" in address.options or endpoint:
        given["region"] = address.options.get("region", "us-east-1")
    if address.user is not None:
        given["access_key_id"] = address.user
        given["secret_access_key"] = options.password or address.password
    return S3Store(
        address.bucket,
        prefix=address.path or None,
        client_options=client,
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=seconds)},
        **given,
    )


def status_of(error: Exception) -> int:
    """Return the status that a server answered with, 0 if it is none of a server's."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def is_absent(error: Exception) -> bool:
    """Whether there is no such object, while there is a bucket."""
    return isinstance(error, MISSING) and _code(error) != "NoSuchBucket"


def is_beyond(error: Exception) -> bool:
    """Whether an object ends before the stretch that was asked for."""
    return status_of(error) == 416 or bool(_BEYOND.search(str(error)))


def is_taken(error: Exception) -> bool:
    """Whether an object is there already, or another writer is about to make it."""
    return isinstance(error, TAKEN) or status_of(error) in (409, 412)


def trouble(error: Exception) -> RemoteError:
    """Return what to raise; its text is the first line, which has no credentials."""
    said = str(error)
    told = (_code(error) or type(error).__name__, said.partition("\n")[0][:300])
    return RemoteError(_trouble(error, said), ": ".join(told))


def _code(error: Exception) -> str:
    """Return a server's own word for what is wrong, "" if it said none."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _trouble(error: Exception, said: str) -> Trouble:
    if isinstance(
        error, (failures.PermissionDeniedError, failures.UnauthenticatedError, PermissionError)
    ):
        return "auth"
    if status := status_of(error):
        return _STATUSES.get(status, "error")
    for kind, word in _KINDS:
        if kind in said:
            return word
    return "error"
