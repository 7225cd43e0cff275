"""Object stores and shared directories as an engine: S3 and what speaks like it, and a file system.

A value is one object, read in stretches; a member of a set is an empty object below the set's name.
Files below a directory have the permissions that this process's umask leaves. For machines with
several users, make the directory with a group of theirs (`chmod g+ws`).
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import obstore
from obstore import exceptions as failures
from obstore.store import LocalStore, S3Store

from omlx_cache_storage.errors import Trouble
from omlx_cache_storage.io_threads import ReaderPool, note_answer
from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import (
    MEMBERS,
    Part,
    RemoteError,
    RemoteOptions,
    all_of,
    meaning,
)

T = TypeVar("T")
ASKS_TOGETHER = 32
"""Requests of one phase: each name takes one, and costs."""
READ_SECONDS = 60.0
"""Seconds that reading a stretch of a value may take at least, while some of it comes."""
WRITE_SECONDS = 15.0
"""Seconds that a write may take at least: no request waits for it, and values are written in one
piece."""
_CHUNK_BYTES = 1 << 20
"""So many bytes must come within the time-out for progress: computing is faster than fewer."""

_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
Verdict = Trouble | Literal["absent", "beyond", "taken"]
"""The meaning of an error. `absent`: there is no such object, while there is a bucket. `beyond`:
the object ends before the requested stretch. `taken`: it exists already, or is about to."""
_BY_TEXT: dict[str, Verdict] = {
    "<Code>NoSuchBucket</Code>": "error",
    "non-2xx status code: 401": "auth",
    "non-2xx status code: 403": "auth",
    "non-2xx status code: 408": "timeout",
    "non-2xx status code: 409": "taken",
    "non-2xx status code: 412": "taken",
    "non-2xx status code: 416": "beyond",
    "non-2xx status code: 429": "throttled",
    "non-2xx status code: 503": "throttled",
    "non-2xx status code: 504": "timeout",
    "non-2xx status code: 507": "full",
    "non-2xx status code: 5": "error",
    "source: InvalidRange {": "beyond",
    "TimedOut": "timeout",
    "kind: Timeout": "timeout",
    "kind: Connect,": "refused",
    "kind: Interrupted": "lost",
    "ConnectionReset": "lost",
    "kind: Request": "lost",
    "kind: Body": "lost",
    "StorageFull": "full",
    "QuotaExceeded": "full",
}
_BY_KIND: dict[type[BaseException], Verdict] = {
    failures.NotFoundError: "absent",
    FileNotFoundError: "absent",
    failures.AlreadyExistsError: "taken",
    FileExistsError: "taken",
    failures.PermissionDeniedError: "auth",
    failures.UnauthenticatedError: "auth",
    PermissionError: "auth",
}


class ObjectEngine:
    """Values in a bucket or below a directory. Connects when it is first asked, tries nothing
    again, and ends each request in time; a file system that hangs cannot be made to.

    The threads of `_pool` send the requests of one call at once. `_closed` is set once, by any
    thread.
    """

    part_bytes: int | None = None
    asks_together = ASKS_TOGETHER

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._address = address
        self._options = options
        self._directory = Path(address.path) if address.kind == "file" else None
        self._pool = ReaderPool(max(options.connections, ASKS_TOGETHER), "omlx-cache-remote-http")
        self._closed = False

    def ping(self) -> None:
        self._guarded(partial(self._head, "ping-that-is-not-there", 1))

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        calls: list[Callable[[], Any]] = [partial(self._head, name, nbytes) for name in names]
        answers = self._together(calls + [partial(self._members, name) for name in sets])
        return [head or None for head in answers[: len(names)]], answers[len(names) :]

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        return self._together([partial(self._some, self._reads, part) for part in parts])

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        body = b"".join(piece for pieces in parts for piece in pieces)
        return self._guarded(partial(self._put, name, body, replace=replace))

    def add(self, set_name: str, member: str) -> None:
        self._guarded(partial(self._put, f"{set_name}/{member}", b"", replace=True))

    def delete(self, names: Sequence[str]) -> int:
        found = self._together([partial(self._head, name, 1) for name in names])
        there = [name for name, head in zip(names, found, strict=True) if head is not None]
        if there:
            self._guarded(lambda: obstore.delete(self._writes, there))
        return len(there)

    def close(self) -> None:
        self._closed = True
        self._pool.stop(0.0)

    # One store, as it is used: each has time-outs of its own, and connections.

    @cached_property
    def _looks(self) -> Any:
        return self._store(self._options.lookup_seconds, self._options.lookup_seconds)

    @cached_property
    def _reads(self) -> Any:
        return self._store(
            max(READ_SECONDS, self._options.read_seconds), self._options.read_seconds
        )

    @cached_property
    def _writes(self) -> Any:
        seconds = max(WRITE_SECONDS, self._options.read_seconds)
        return self._store(seconds, seconds)

    def _store(self, seconds: float, silent: float) -> Any:
        """Return a store whose requests take at most so long, and bring something every `silent`
        seconds."""
        address = self._address
        if self._directory is not None:
            if not self._directory.parent.is_dir():
                # A share that is not mounted: made, it would fill this machine's own disk.
                raise RemoteError(
                    "refused", f"there is no {self._directory.parent}: make or mount it"
                )
            return LocalStore(self._directory, automatic_cleanup=False, mkdir=True)
        endpoint = address.options.get("endpoint", "")
        given: dict[str, Any] = {}
        if endpoint:
            given = {"endpoint": endpoint, "virtual_hosted_style_request": False}
        if "region" in address.options or endpoint:
            given["region"] = address.options.get("region", "us-east-1")
        if address.user is not None:
            given["access_key_id"] = address.user
            given["secret_access_key"] = self._options.password or address.password
        return S3Store(
            address.bucket,
            prefix=address.path or None,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=min(seconds, self._options.read_seconds)),
                "read_timeout": timedelta(seconds=silent),
                "timeout": timedelta(seconds=seconds),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=seconds)},
            **given,
        )

    def _put(self, name: str, body: bytes, *, replace: bool) -> bool:
        try:
            mode: Any = "overwrite" if replace else "create"
            obstore.put(self._writes, name, body, mode=mode, use_multipart=False)
        except (failures.NotSupportedError, NotImplementedError):
            # A store of objects may be unable to create only a missing object.
            if replace:
                raise
            return self._head(name, 1) is None and self._put(name, body, replace=True)
        except Exception as error:
            if not replace and verdict(error) == "taken":
                return False
            raise
        return True

    def _head(self, name: str, nbytes: int) -> bytes | None:
        found = self._some(self._looks, Part(name, 0, 0, nbytes))
        return None if found is None else bytes(found)

    def _some(self, store: Any, part: Part) -> Buffer | None:
        if self._directory is not None:
            return _stretch(self._directory / part.name, part)
        # No store is asked for no bytes; a value that ends before them is as short as it is.
        end = part.offset + max(1, part.nbytes)
        found = bytearray()
        try:
            answer = obstore.get(store, part.name, options={"range": (part.offset, end)})
            for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                found += memoryview(chunk)[: part.nbytes - len(found)]
                note_answer()
                if len(found) >= part.nbytes:
                    break
        except Exception as error:
            means = verdict(error)
            if means not in ("absent", "beyond"):
                raise
            return b"" if means == "beyond" else None
        return found

    def _members(self, set_name: str) -> list[str]:
        found = next(iter(obstore.list(self._looks, prefix=f"{set_name}/", chunk_size=MEMBERS)), [])
        return sorted(one["path"].rpartition("/")[2] for one in found)

    def _together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        guarded = [partial(self._guarded, call) for call in calls]
        return [guarded[0]()] if len(calls) == 1 else all_of(self._pool, guarded)

    def _guarded(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise RemoteError("lost", "the engine is closed")
        try:
            return call()
        except RemoteError:
            raise
        except Exception as error:
            raise _trouble(error) from None


def _at_once(path: str, flags: int) -> int:
    """Open a path without waiting: opening a pipe would wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _stretch(file: Path, part: Part) -> Buffer | None:
    """Read a stretch of a file. The client of object stores would wait for ever at a pipe."""
    found = bytearray()
    try:
        with open(file, "rb", buffering=0, opener=_at_once) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                return None
            opened.seek(part.offset)
            while some := opened.read(min(_CHUNK_BYTES, part.nbytes - len(found))):
                found += some
                note_answer()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    return found


def verdict(error: Exception) -> Verdict:
    return meaning(error, _BY_TEXT, _BY_KIND) or "error"


def _trouble(error: Exception) -> RemoteError:
    """Return what to raise; its text is the first line, which has no credentials."""
    said = str(error)
    code = _CODE.search(said)
    means = verdict(error)
    reason = "error" if means in ("absent", "beyond", "taken") else cast(Trouble, means)
    what = code[1] if code else type(error).__name__
    return RemoteError(reason, f"{what}: {said.partition(chr(10))[0][:300]}")
