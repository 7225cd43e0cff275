"""A store's answers: each operation reads the store and returns plain values."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from omlx_cache.control.answering import Answering
from omlx_cache.control.errors import ControlError
from omlx_cache.control.listing import (
    Pruning,
    detail_rows,
    find_namespace,
    namespace_rows,
    page_rows,
)
from omlx_cache.control.replies import (
    ColdHolding,
    Holding,
    NamespaceRow,
    PageDetails,
    PageRow,
    ProcessRow,
    RecordPage,
    RemoteHolding,
)
from omlx_cache.control.serialization import document, extended
from omlx_cache.identity.namespace import installed
from omlx_cache.requests.log import answer, explained
from omlx_cache.status.history import ProcessStatus
from omlx_cache.status.kv_events import events_document, kv_document
from omlx_cache.status.levels import PrefixLevels
from omlx_cache.status.prefix_lookup import (
    MOST_KEYS,
    namespaces_document,
    prefix_document,
)
from omlx_cache.status.routes import Arguments, Operations
from omlx_cache_storage.documents import as_versions
from omlx_cache_storage.keys import NAMESPACE_BYTES, BlockKey
from omlx_cache_storage.stats import KINDS, Stats

DEFAULT_LIMIT = 1000
MOST_EVENTS = 10_000
CLEAR_SECONDS = 30.0
KEY_DIGITS = (32, 2 * NAMESPACE_BYTES)


def operations(store: Answering) -> Operations:
    """None of the operations mutates the store, but `clear` and `prune`."""
    levels = PrefixLevels(store)
    return {
        "ping": lambda args: store.identity(),
        "stats": lambda args: _stats(store, levels),
        "ps": lambda args: _ps(store),
        "config": lambda args: _config(store),
        "ls": lambda args: _ls(store, args),
        "requests": lambda args: _requests(store, args),
        "events": lambda args: _events(store, args),
        "inspect": lambda args: _inspect(store, args),
        "compare": lambda args: {
            what: len(pages) for what, pages in store.compare()._asdict().items()
        },
        "flush": lambda args: {"durable": store.flush(args.get("timeout", CLEAR_SECONDS))},
        "clear": lambda args: _clear(store, args),
        "why": lambda args: answer(
            store.requests, store.decoder, args.get("last", 1), args.get("number")
        ),
        "prune": lambda args: _prune(store, args),
        "recent": lambda args: explained(store.requests, min(_limit(args), DEFAULT_LIMIT)),
        "prefixes": lambda args: _prefixes(levels, args),
        "lookup": lambda args: _lookup(store, args),
        "processes": lambda args: [
            extended(
                ProcessStatus,
                store.identity(),
                cold_dir=store.cold_dir,
                stats=_stats(store, levels),
            )
        ],
        "settings": lambda args: [_config(store)],
    }


def _stats(store: Answering, levels: PrefixLevels) -> Stats:
    # A watcher asks for figures again and again: this frees a tree that no one uses.
    levels.tidy()
    store.refresh()
    stats, allowed = store.stats(), store.allowance()
    if stats.cold is not None and allowed is not None:
        stats = replace(stats, cold=replace(stats.cold, **allowed.to_dict()))
    return stats


def _config(store: Answering) -> dict[str, object]:
    return {**document(store.identity()), **store.configuration()}


def _ps(store: Answering) -> ProcessRow:
    # Pages that peer processes wrote and deleted count, as in every store's figures.
    store.refresh()
    stats = store.stats()
    hot, cold, writer, remote = stats.hot, stats.cold, stats.writer, stats.remote
    allowed = store.allowance()
    disk = cold and ColdHolding(
        pages=cold.pages,
        bytes=cold.nbytes,
        limit_bytes=cold.limit_bytes,
        state=cold.state,
        room=cold.room,
        dir=store.cold_dir,
    )
    return extended(
        ProcessRow,
        store.identity(),
        versions=installed(),
        hot=Holding(pages=hot.pages, bytes=hot.nbytes, limit_bytes=hot.limit_bytes),
        cold=replace(disk, **allowed.to_dict()) if disk and allowed else disk,
        remote=remote and RemoteHolding(where=remote.where, state=remote.state),
        pending=Holding(pages=writer.pending_pages, bytes=writer.pending_bytes)
        if writer
        else Holding(pages=0, bytes=0),
        sessions=stats.requests.live_sessions,
    )


def _ls(store: Answering, args: Arguments) -> Sequence[NamespaceRow | PageRow]:
    prefix, limit = args.get("namespace"), _limit(args)
    pages = store.listing()
    if not prefix:
        return namespace_rows(pages, store.readable_document, limit, store.created_ns)
    return page_rows(pages, find_namespace(pages, prefix), limit)


def _requests(store: Answering, args: Arguments) -> RecordPage:
    """Return the records of requests beyond the number `after` (without it: of requests in flight),
    and the records of `open` that are still remembered. `upto` is the next `after`."""
    after, limit = args.get("after"), min(_limit(args), DEFAULT_LIMIT)
    return store.requests.page(-1 if after is None else after, set(args.get("open", ())), limit)


def _events(store: Answering, args: Arguments) -> dict[str, object]:
    """Return events beyond the number `after` (without it: the latest), of some `kinds`, or with
    `kv` as batches for a router."""
    kinds, after, limit = (
        args.get("kinds"),
        args.get("after"),
        min(_limit(args), MOST_EVENTS),
    )
    if not set(kinds or ()) <= set(KINDS):
        raise ControlError("bad_request", f"kinds must be some of {', '.join(KINDS)}")
    # The events of peer processes are read when a client asks.
    store.refresh()
    if args.get("kv"):
        return {"pid": os.getpid(), **kv_document(store.events, after, limit)}
    return {"pid": os.getpid(), **events_document(store.events, after, limit, kinds)}


def _prefixes(levels: PrefixLevels, args: Arguments) -> Mapping[str, object]:
    namespace, parent = _key(args, "namespace"), _key(args, "parent")
    if parent is not None and namespace is None:
        raise ControlError("bad_request", "parent needs the namespace that it is in")
    return levels.level(namespace, parent, _limit(args), text=args.get("text", False))


def _lookup(store: Answering, args: Arguments) -> Mapping[str, object]:
    """Return how much of a chain of `keys` in a `namespace` can be restored; without keys, the
    namespaces of this process. Marks nothing as used."""
    namespace, digits = _key(args, "namespace"), args.get("keys")
    if digits is None:
        if namespace is not None:
            raise ControlError("bad_request", "namespace needs the keys to look for in it")
        return namespaces_document(store, args.get("model"))
    if namespace is None or not 0 < len(digits) <= MOST_KEYS:
        wanted = f"keys must be a list of 1 to {MOST_KEYS}, with the namespace that they are in"
        raise ControlError("bad_request", wanted)
    keys = [_key({"keys": one}, "keys") for one in digits]
    return prefix_document(store, namespace, [key for key in keys if key is not None])


def _inspect(store: Answering, args: Arguments) -> list[PageDetails]:
    prefix = args.get("key_prefix")
    if not prefix:
        raise ControlError("bad_request", "key_prefix must be a non-empty text of hex digits")
    return detail_rows(store.listing(), prefix, _limit(args))


def _clear(store: Answering, args: Arguments) -> dict[str, object]:
    namespace = _key(args, "namespace")
    if namespace is None or len(namespace) != NAMESPACE_BYTES:
        raise ControlError("bad_request", f"namespace must be {2 * NAMESPACE_BYTES} hex digits")
    return {"pages": store.clear(namespace, args.get("timeout", CLEAR_SECONDS))}


def _prune(store: Answering, args: Arguments) -> dict[str, object]:
    """What this process uses itself is kept, whatever the request says."""
    keep = args.get("keep")
    known = None if keep is None else [*map(as_versions, keep), installed()]
    asked = Pruning(known, args.get("before_ns"), args.get("to_bytes"))
    is_dry, timeout = args.get("dry_run", True), args.get("timeout", CLEAR_SECONDS)
    return (store.choose(asked) if is_dry else store.prune(asked, timeout)).to_dict()


def _key(args: Arguments, name: str) -> BlockKey | None:
    digits = args.get(name)
    if digits is None:
        return None
    with contextlib.suppress(ValueError):
        if len(digits) in KEY_DIGITS:
            return BlockKey(bytes.fromhex(digits))
    raise ControlError("bad_request", f"{name} must be a key's hex digits, not {digits!r:.80}")


def _limit(args: Arguments) -> int:
    return int(args.get("limit", DEFAULT_LIMIT))
