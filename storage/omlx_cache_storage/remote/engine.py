"""The remote tier's interface to an engine: named values, read and written, its errors, and when
the tier backs off.

An engine knows no pages. Its client is a well-kept library, imported when an engine is opened; the
client's errors become `RemoteError`.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import NamedTuple, Protocol, TypeVar

from omlx_cache_storage.breaker import CircuitBreaker
from omlx_cache_storage.errors import CacheError, Trouble
from omlx_cache_storage.io_threads import ReaderPool, result_along
from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.address import PREFIX, TTL_SECONDS, RemoteAddress

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The use of a remote store. No field with a secret is in its `repr`.

    A request waits `lookup_seconds` at most for a lookup, and `read_seconds` for the next page.
    `ttl_seconds` 0: values have no time to live. `secret` authenticates every page; `encrypts`
    makes pages unreadable without it. Machines share pages only where `architecture` is equal.
    `packs`: dense pages are packed losslessly for the way.
    """

    url: str = field(repr=False)
    architecture: str
    password: str | None = field(default=None, repr=False)
    secret: bytes | None = field(default=None, repr=False)
    encrypts: bool = False
    prefix: str = PREFIX
    ttl_seconds: int = TTL_SECONDS
    lookup_seconds: float = 0.5
    read_seconds: float = 2.0
    connections: int = 8
    packs: bool = True


class ExtraMissing(ImportError):
    """A client library is not installed; the text says what installs it."""


def check_extra(address: RemoteAddress, *, signs: bool = False) -> None:
    """Raise ExtraMissing unless the libraries for an address and a shared secret are installed;
    imports nothing."""
    needed = ["obstore" if address.kind in ("s3", "file") else "redis"]
    needed += ["cryptography"] if signs else []
    for package in needed:
        if find_spec(package) is None:
            raise ExtraMissing(
                f"{address.shown} needs the package {package}: pip install 'omlx-cache[remote]'"
            )


MEMBERS = 256
"""Members of a set that are kept or asked for. A boundary that thousands of prompts share would
otherwise get as many, and every lookup would bring them all."""


class RemoteError(CacheError):
    """An engine failed at a request. The text names no password."""

    def __init__(self, reason: Trouble, text: str = "") -> None:
        super().__init__(text[:500])
        self.reason = reason


def meaning(
    error: Exception, texts: Mapping[str, T], kinds: Mapping[type[BaseException], T]
) -> T | None:
    """Return the meaning of a client's error by its text, or else by its kind or its first cause's;
    None when neither is known."""
    cause: BaseException = error
    while (before := cause.__cause__ or cause.__context__) is not None:
        cause = before
    said = str(error)
    found = [means for text, means in texts.items() if text in said]
    for one in (error, cause):
        found += [means for kind, means in kinds.items() if isinstance(one, kind)]
    return found[0] if found else None


def known_error(error: Exception) -> RemoteError:
    """Return an engine's error; of a client's bug only its kind: its text may quote anything."""
    return error if isinstance(error, RemoteError) else RemoteError("error", type(error).__name__)


class Part(NamedTuple):
    name: str
    number: int
    offset: int
    nbytes: int


class RemoteEngine(Protocol):
    """Named, immutable values on other machines. Any thread may call any method; each blocks on the
    network, as long as the client's own time-outs say, and raises RemoteError alone.

    `part_bytes`: a value is cut into parts of so many bytes, the last one shorter. None where any
    stretch of a value can be read, so that no value is cut. `asks_together`: how many names one
    phase asks for without taking longer than for one.
    """

    part_bytes: int | None
    asks_together: int

    def ping(self) -> None:
        """Return once the store answers."""

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        """Return the first `nbytes` of each value (fewer of a shorter one), None for a missing one.
        Return the members of each set as well, [] for a missing one. One sequential phase:
        pipelined, or at once on several connections."""

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        """Return each part's bytes, None for one that is not there. A part that is shorter than it
        should be is returned as it is. It calls `note_answer` when some of them came, long before
        all of them did."""

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        """Publish a value whole or not at all: its parts, each given in pieces, the head last.
        False without `replace` when it is there already."""

    def add(self, set_name: str, member: str) -> None:
        """Add to a set that lives about as long as values do."""

    def delete(self, names: Sequence[str]) -> int:
        """Delete values with all their parts, and return how many there were."""

    def close(self) -> None:
        """Close connections; calls in flight on other threads fail. Never raises."""


def all_of(pool: ReaderPool, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of calls, all begun at once. When one fails, calls that did not begin are
    cancelled, and the others are left behind: a dead store costs one time-out."""
    futures: list[Future[T]] = []
    try:
        futures += [pool.submit(call) for call in calls]
        return [result_along(future) for future in futures]
    except (RuntimeError, CancelledError):
        raise RemoteError("lost", "the engine is closed") from None
    finally:
        for future in futures:
            future.cancel()


def cut(pieces: Sequence[Buffer], part_bytes: int | None) -> list[list[Buffer]]:
    if part_bytes is None:
        return [list(pieces)]
    value = memoryview(b"".join(pieces))
    return [[value[at : at + part_bytes]] for at in range(0, len(value), part_bytes)] or [[]]


class BackOff:
    """A `CircuitBreaker` for any number of threads, with why it opened. Waits for nothing.

    `trouble` says why the tier backed off, until it has answered again; `rests` how often.
    `changed` tells of a change, outside of the lock. `_lock` guards all, also `_stalled`: small
    answers say nothing then, since networks lose large packets and bring small ones.
    """

    def __init__(
        self,
        changed: Callable[[str], None] = lambda why: None,
        what: str = "the remote store",
    ) -> None:
        self._what = what
        self.trouble = ""
        self.rests = 0
        self._changed = changed
        self._lock = threading.Lock()
        self._breaker = CircuitBreaker()
        self.left = self._breaker.left
        self._stalled = False

    @property
    def why(self) -> str:
        return self.trouble if self._breaker.is_open else ""

    def enter(self) -> None:
        """Raise RemoteError while the tier backs off. A caller that may ask reports how it went."""
        with self._lock:
            if self._breaker.enter():
                return
        raise RemoteError("resting", f"the tier backs off: {self.trouble}")

    def succeeded(self, *, read: bool = False) -> None:
        """Note an answer; after a read that stalled only a `read` says that all is well."""
        with self._lock:
            self._breaker.succeeded(sure=read or not self._stalled)
            self._stalled &= not read
            was, self.trouble = self.trouble, ""
        if was:
            _log.warning("%s answers again", self._what)
            self._changed("")

    def failed(self, why: str, *, at_once: bool = False, stalled: bool = False) -> None:
        """Note a failure; one `at_once`, or of a read that `stalled`, is enough."""
        with self._lock:
            self._stalled |= stalled
            self._breaker.left()
            if self._breaker.is_open:
                # It was asked before that, by many at once: one failure is enough.
                return
            self._breaker.failed()
            while (at_once or stalled) and not self._breaker.tripped:
                self._breaker.failed()
            if self.trouble or not self._breaker.tripped:
                return
            self.trouble = why
            self.rests += 1
        _log.warning("backing off from %s: %s", self._what, why)
        self._changed(why)
