"""Object stores and shared directories as an engine: S3 and what speaks like it, and a file system.

A value is one object, read in stretches; a member of a set is an empty object below the set's name.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore import exceptions as failures
from obstore.store import LocalStore, S3Store

from omlx_cache_storage.page import Buffer
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import Part, RemoteError
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.reasons import Trouble

T = TypeVar("T")
ASKS_TOGETHER = 32
"""Requests of one phase: each name takes one, and costs."""
_GONE = (failures.NotFoundError, FileNotFoundError)
_TROUBLES: tuple[tuple[tuple[str, ...], Trouble], ...] = (
    (("503", "429", "slowdown", "slow down", "throttl", "too many requests"), "throttled"),
    (("401", "403", "forbidden", "accessdenied", "access denied", "signature"), "auth"),
    (("no space", "storagefull", "quota"), "full"),
    (("refused",), "refused"),
    (("timed out", "timeout", "deadline"), "timeout"),
    (("connection", "incomplete", "body", "reset", "eof", "sending request"), "lost"),
)


class ObjectEngine:
    """Values in a bucket or below a directory. Connects when it is first asked.

    The threads of `_pool` carry out what one call asks at once.
    """

    part_bytes: int | None = None
    asks_together = ASKS_TOGETHER

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._store: Any = _opened(address, options)
        self._pool = ReaderPool(max(options.connections, ASKS_TOGETHER), "omlx-cache-remote-http")
        # A file system is known to take "create"; a store of objects is asked.
        self._creates = True

    def ping(self) -> None:
        self._guarded(partial(self._head, "ping-that-is-not-there", 1))

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        calls: list[Callable[[], Any]] = [partial(self._head, name, nbytes) for name in names]
        calls += [partial(self._members, name) for name in sets]
        answers = self._together(calls)
        return answers[: len(names)], answers[len(names) :]

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        return self._together([partial(self._range, p.name, p.offset, p.nbytes) for p in parts])

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        body = b"".join(piece for pieces in parts for piece in pieces)
        return self._guarded(partial(self._put, name, body, replace=replace))

    def add(self, set_name: str, member: str) -> None:
        self._guarded(partial(self._put, f"{set_name}/{member}", b"", replace=True))

    def delete(self, names: Sequence[str]) -> int:
        found, _ = self.look(names, 1)
        there = [name for name, head in zip(names, found, strict=True) if head is not None]
        if there:
            self._guarded(partial(obstore.delete, self._store, there))
        return len(there)

    def close(self) -> None:
        self._pool.stop(0.0)

    def _put(self, name: str, body: bytes, *, replace: bool) -> bool:
        mode: Any = "overwrite" if replace or not self._creates else "create"
        try:
            obstore.put(self._store, name, body, mode=mode, use_multipart=False)
        except (failures.AlreadyExistsError, FileExistsError):
            return False
        except (failures.NotSupportedError, NotImplementedError):
            self._creates = False
            return self._put(name, body, replace=True)
        return True

    def _head(self, name: str, nbytes: int) -> bytes | None:
        found = self._range(name, 0, nbytes)
        return None if found is None else bytes(found)

    def _range(self, name: str, start: int, nbytes: int) -> Buffer | None:
        try:
            answer = obstore.get(
                self._store, name, options={"range": (start, start + max(1, nbytes))}
            )
            return memoryview(answer.bytes())
        except _GONE:
            return None

    def _members(self, set_name: str) -> list[str]:
        found = []
        for batch in obstore.list(self._store, prefix=f"{set_name}/"):
            found += [str(one["path"]).rpartition("/")[2] for one in batch]
        return sorted(found)

    def _together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        if len(calls) == 1:
            return [self._guarded(calls[0])]
        try:
            futures = [self._pool.submit(self._guarded, call) for call in calls]
        except RuntimeError:
            raise RemoteError("lost", "the engine is closed") from None
        return _results(futures)

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except RemoteError:
            raise
        except Exception as error:
            raise _trouble(error) from None


def _opened(address: RemoteAddress, options: RemoteOptions) -> Any:
    if address.kind == "file":
        return LocalStore(Path(address.path), automatic_cleanup=False, mkdir=True)
    endpoint = address.options.get("endpoint", "")
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
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": _seconds(options.read_seconds),
            "timeout": _seconds(options.read_seconds),
        },
        retry_config={"max_retries": 0, "retry_timeout": _duration(options.read_seconds)},
        **given,
    )


def _seconds(seconds: float) -> str:
    return f"{max(1, round(1000 * seconds))}ms"


def _duration(seconds: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)


def _results(futures: Iterable["Future[Any]"]) -> list[Any]:
    found, trouble = [], None
    for future in futures:
        try:
            found.append(future.result())
        except Exception as error:
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    return found


def _trouble(error: Exception) -> RemoteError:
    text = str(error)
    said = text.lower()
    if isinstance(error, (failures.PermissionDeniedError, failures.UnauthenticatedError)):
        return RemoteError("auth", type(error).__name__)
    for words, trouble in _TROUBLES:
        if any(word in said for word in words):
            return RemoteError(trouble, f"{type(error).__name__}: {text.splitlines()[0]}")
    return RemoteError("error", f"{type(error).__name__}: {text.splitlines()[0] if text else ''}")
