"""What the control socket answers: each operation reads the store and returns plain values."""

from collections.abc import Callable, Mapping
from typing import Protocol

from omlx_cache.control.errors import ControlError
from omlx_cache.identity.software import installed
from omlx_cache.requests.log import RequestLog
from omlx_cache.upkeep.allowance import Allowance
from omlx_cache.version import VERSION
from omlx_cache_storage.documents import as_versions
from omlx_cache_storage.keys import NAMESPACE_BYTES, BlockKey
from omlx_cache_storage.listed import ListedPage
from omlx_cache_storage.listing import (
    NoSuchNamespace,
    detail_rows,
    find_namespace,
    namespace_rows,
    page_rows,
)
from omlx_cache_storage.pruning import Chosen, Pruning
from omlx_cache_storage.stats import Stats

Handler = Callable[[Mapping[str, object]], object]
DEFAULT_LIMIT = 1000
CLEAR_SECONDS = 30.0


class Answering(Protocol):
    """What the operations read of a store. Any thread may call any of it."""

    @property
    def cold_dir(self) -> str | None: ...
    def identity(self) -> Mapping[str, object]: ...
    def configuration(self) -> Mapping[str, object]: ...
    def refresh(self) -> bool: ...
    def stats(self) -> Stats: ...
    def allowance(self) -> Allowance | None: ...
    @property
    def requests(self) -> RequestLog: ...
    def listing(self) -> list[ListedPage]: ...
    def readable_document(self, digest: BlockKey) -> Mapping[str, object]: ...
    def created_ns(self, digest: BlockKey) -> int | None: ...
    def why(self, last: int, number: int | None) -> Mapping[str, object]: ...
    def clear(self, namespace: BlockKey, timeout: float) -> int: ...
    def flush(self, timeout: float) -> bool: ...
    def choose(self, asked: Pruning) -> Chosen: ...
    def prune(self, asked: Pruning, timeout: float) -> Chosen: ...


def handlers(store: Answering) -> dict[str, Handler]:
    """Return the operations by name; none of them mutates the store, but `clear` and
    `prune`."""
    return {
        "ping": lambda args: _ping(store),
        "stats": lambda args: _stats(store),
        "ps": lambda args: _ps(store),
        "config": lambda args: {**store.identity(), **store.configuration()},
        "ls": lambda args: _ls(store, args),
        "requests": lambda args: _requests(store, args),
        "inspect": lambda args: _inspect(store, args),
        "flush": lambda args: {"durable": store.flush(_timeout(args))},
        "clear": lambda args: _clear(store, args),
        "why": lambda args: _why(store, args),
        "prune": lambda args: _prune(store, args),
    }


def _ping(store: Answering) -> dict[str, object]:
    return {**store.identity(), "version": VERSION}


def _stats(store: Answering) -> dict[str, object]:
    store.refresh()
    shown, allowed = store.stats().to_dict(), store.allowance()
    cold = shown.get("cold")
    if isinstance(cold, dict) and allowed is not None:
        shown["cold"] = {**cold, **allowed.to_dict()}
    return shown


def _ps(store: Answering) -> dict[str, object]:
    # What others wrote and deleted counts, as it does in every store's figures.
    store.refresh()
    stats = store.stats()
    cold, writer, allowed = stats.cold, stats.writer, store.allowance()
    return {
        **store.identity(),
        "versions": installed(),
        "hot": {
            "bytes": stats.hot.nbytes,
            "limit_bytes": stats.hot.limit_bytes,
            "pages": stats.hot.pages,
        },
        "cold": None
        if cold is None
        else {
            "bytes": cold.nbytes,
            "limit_bytes": cold.limit_bytes,
            "pages": cold.pages,
            "state": cold.state,
            "dir": store.cold_dir,
            **({} if allowed is None else allowed.to_dict()),
        },
        "pending": {
            "bytes": 0 if writer is None else writer.pending_bytes,
            "pages": 0 if writer is None else writer.pending_pages,
        },
        "sessions": stats.requests.live_sessions,
    }


def _ls(store: Answering, args: Mapping[str, object]) -> list[dict[str, object]]:
    prefix, limit = args.get("namespace"), _limit(args)
    pages = store.listing()
    if not isinstance(prefix, str) or not prefix:
        return namespace_rows(pages, store.readable_document, limit, store.created_ns)
    try:
        return page_rows(pages, find_namespace(pages, prefix), limit)
    except NoSuchNamespace as error:
        code = "ambiguous" if error.matches else "not_found"
        raise ControlError(code, str(error)) from error


def _requests(store: Answering, args: Mapping[str, object]) -> dict[str, object]:
    """The records of requests beyond the number `after` (without it: those under way), and those of
    `open` that are still remembered; `upto` is what `after` is next."""
    after, numbers = _count(args, "after"), args.get("open", [])
    if not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
        raise ControlError("bad_request", "open must be a list of numbers")
    limit = min(_limit(args), DEFAULT_LIMIT)
    page = store.requests.page(-1 if after is None else after, set(numbers), limit)
    return {"upto": page.upto, "records": [record.to_dict() for record in page.records]}


def _inspect(store: Answering, args: Mapping[str, object]) -> list[dict[str, object]]:
    prefix = args.get("key_prefix")
    if not isinstance(prefix, str) or not prefix:
        raise ControlError("bad_request", "key_prefix must be a non-empty text of hex digits")
    return detail_rows(store.listing(), prefix, _limit(args))


def _clear(store: Answering, args: Mapping[str, object]) -> dict[str, object]:
    digits = args.get("namespace")
    try:
        namespace = bytes.fromhex(digits) if isinstance(digits, str) else b""
    except ValueError:
        namespace = b""
    if len(namespace) != NAMESPACE_BYTES:
        raise ControlError("bad_request", f"namespace must be {2 * NAMESPACE_BYTES} hex digits")
    return {"pages": store.clear(BlockKey(namespace), _timeout(args))}


def _prune(store: Answering, args: Mapping[str, object]) -> dict[str, object]:
    asked = _pruning(args)
    dry_run = args.get("dry_run", True)
    if not isinstance(dry_run, bool):
        raise ControlError("bad_request", "dry_run must be true or false")
    chosen = store.choose(asked) if dry_run else store.prune(asked, _timeout(args))
    return chosen.to_dict()


def _why(store: Answering, args: Mapping[str, object]) -> Mapping[str, object]:
    return store.why(_count(args, "last") or 1, _count(args, "number"))


def _pruning(args: Mapping[str, object]) -> Pruning:
    """Return what shall go; what this process uses itself is kept, whatever the request says."""
    keep = args.get("keep")
    if keep is not None and not isinstance(keep, list):
        raise ControlError("bad_request", "keep must be a list of versions")
    known = None if keep is None else [*map(as_versions, keep), installed()]
    return Pruning(known, _count(args, "before_ns"), _count(args, "to_bytes"))


def _count(args: Mapping[str, object], name: str) -> int | None:
    count = args.get(name)
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise ControlError("bad_request", f"{name} must be a whole number, 0 at least")
    return count


def _timeout(args: Mapping[str, object]) -> float:
    timeout = args.get("timeout", CLEAR_SECONDS)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ControlError("bad_request", "timeout must be a positive number of seconds")
    return min(float(timeout), 3600.0)


def _limit(args: Mapping[str, object]) -> int:
    limit = args.get("limit")
    return limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT
