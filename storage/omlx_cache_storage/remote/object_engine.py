"""Object stores and shared directories as an engine: S3 and what speaks like it, and a file system.

A value is one object, read in stretches; a member of a set is an empty object below the set's name.
What is made below a directory has the permissions that this process's umask leaves: for machines
with several users, make the directory with a group of theirs (`chmod g+ws`).
"""

import os
import stat
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import obstore
from obstore import exceptions as failures
from obstore.store import LocalStore, S3Store

from omlx_cache_storage.page import Buffer
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import MEMBERS, Part, RemoteError
from omlx_cache_storage.remote.object_errors import is_absent, is_beyond, is_taken, trouble
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.slabs import NEW_MEMORY, Sink

T = TypeVar("T")
ASKS_TOGETHER = 32
"""Requests of one phase: each name takes one, and costs."""
READ_SECONDS = 60.0
"""What reading a stretch of a value may take at least, while some of it comes."""
WRITE_SECONDS = 15.0
"""What a write may take at least: no request waits for it, and values are written in one piece."""
_CHUNK_BYTES = 1 << 18


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

    def read(self, parts: Sequence[Part], sink: Sink = NEW_MEMORY) -> list[Buffer | None]:
        return self._together([partial(self._part, part, sink) for part in parts])

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
        found = self._some(self._stores.looks, Part(name, 0, 0, nbytes), NEW_MEMORY)
        return None if found is None else bytes(found)

    def _part(self, part: Part, sink: Sink) -> Buffer | None:
        return self._some(self._stores.reads, part, sink)

    def _some(self, store: Any, part: Part, sink: Sink) -> Buffer | None:
        if self._directory is not None:
            return _stretch(self._directory / part.name, part, sink)
        return self._range(store, part.name, part.offset, part.nbytes, sink)

    def _range(self, store: Any, name: str, start: int, nbytes: int, sink: Sink) -> Buffer | None:
        # No store is asked for no bytes; a value that ends before them is as short as it is.
        try:
            answer = obstore.get(store, name, options={"range": (start, start + max(1, nbytes))})
            return _received(answer, nbytes, sink)
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
        are not begun, so that a dead store costs one time-out."""
        if len(calls) < 2:
            return [self._guarded(call) for call in calls]
        failed: list[RemoteError] = []
        try:
            futures = [self._pool.submit(self._unless, failed, call) for call in calls]
        except RuntimeError:
            raise RemoteError("lost", "the engine is closed") from None
        answers = []
        for future in futures:
            try:
                answers.append(future.result())
            except RemoteError as error:
                failed.append(error)
            except BaseException:
                # The pool was stopped: this one never began.
                if not self._closed:
                    raise
                failed.append(RemoteError("lost", "the engine was closed"))
        if failed:
            raise failed[0]
        return answers

    def _unless(self, failed: list[RemoteError], call: Callable[[], T]) -> T:
        if failed:
            raise failed[0]
        try:
            return self._guarded(call)
        except RemoteError as error:
            failed.append(error)
            raise

    def _guarded(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise RemoteError("lost", "the engine is closed")
        try:
            return call()
        except RemoteError:
            raise
        except Exception as error:
            raise trouble(error) from None


def _received(answer: Any, nbytes: int, sink: Sink) -> memoryview:
    """Take an answer as it comes, which may take longer than one may wait for some of it."""
    start, end = answer.range
    memory = sink.memory(min(nbytes, end - start))
    filled = 0
    for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
        if filled == memory.nbytes:
            break
        some = memoryview(chunk)[: memory.nbytes - filled]
        memory[filled : filled + some.nbytes] = some
        filled += some.nbytes
        sink.came(some.nbytes)
    return memory[:filled]


def _at_once(path: str, flags: int) -> int:
    """Open whatever lies there: of a pipe one would wait for somebody who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _stretch(file: Path, part: Part, sink: Sink) -> Buffer | None:
    """Read a stretch of a file. The client of object stores would do that into new memory, and wait
    for ever at a pipe."""
    try:
        with open(file, "rb", buffering=0, opener=_at_once) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            nbytes = min(part.nbytes, status.st_size - part.offset)
            if nbytes <= 0:
                return b""
            memory = sink.memory(nbytes)
            filled = 0
            opened.seek(part.offset)
            while count := opened.readinto(memory[filled : filled + _CHUNK_BYTES]):
                filled += count
                sink.came(count)
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
