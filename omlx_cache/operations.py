"""What the control socket answers: each operation reads the store and returns plain values."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from omlx_cache_storage.catalog import describe
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.page import PageMeta

if TYPE_CHECKING:
    from omlx_cache.store import BlockStore

Handler = Callable[[Mapping[str, object]], object]
DEFAULT_LIMIT = 1000


class _Row(NamedTuple):
    """One page of either tier, merged by id."""

    namespace: str
    key: str
    group: str
    position: int
    tokens: int
    nbytes: int
    tiers: list[str]
    path: str


def handlers(store: "BlockStore") -> dict[str, Handler]:
    """Return the operations by name; none of them mutates the store, but `clear`."""
    return {
        "ping": lambda args: _ping(store),
        "stats": lambda args: store.stats().to_dict(),
        "ps": lambda args: _ps(store),
        "ls": lambda args: _ls(store, args),
        "inspect": lambda args: _inspect(store, args),
        "clear": lambda args: _clear(store, args),
    }


def _ping(store: "BlockStore") -> dict[str, object]:
    from omlx_cache import __version__

    return {**store.identity(), "version": __version__}


def _ps(store: "BlockStore") -> dict[str, object]:
    stats = store.stats()
    cold, writer = stats.cold, stats.writer
    return {
        **store.identity(),
        "models": store.labels,
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
            "dir": str(store.settings.cold_dir),
        },
        "pending": {
            "bytes": 0 if writer is None else writer.pending_bytes,
            "pages": 0 if writer is None else writer.pending_pages,
        },
        "sessions": stats.requests.live_sessions,
    }


def _rows(store: "BlockStore") -> Iterator[_Row]:
    merged: dict[tuple[str, str], _Row] = {}
    for meta, tier in store.hot.metas():
        merged[meta.key.hex(), meta.group] = _Row(
            meta.namespace.hex(),
            meta.key.hex(),
            meta.group,
            meta.position,
            meta.held,
            meta.nbytes,
            [tier],
            "",
        )
    for page, namespace, info, path in store.cold.entries() if store.cold is not None else []:
        key = (page.key.hex(), page.group)
        known = merged.get(key)
        tiers = (known.tiers if known is not None else []) + ["cold"]
        merged[key] = _Row(
            namespace.hex(),
            key[0],
            page.group,
            info.position,
            info.held,
            info.nbytes,
            tiers,
            str(path),
        )
    return iter(sorted(merged.values(), key=lambda r: (r.namespace, r.position, r.group, r.key)))


def _ls(store: "BlockStore", args: Mapping[str, object]) -> list[dict[str, object]]:
    prefix = args.get("namespace")
    limit = _limit(args)
    if isinstance(prefix, str) and prefix:
        now = time.time()
        rows = [row for row in _rows(store) if row.namespace.startswith(prefix)]
        return [_page_row(row, now) for row in rows[:limit]]
    found: dict[str, dict[str, object]] = {}
    for row in _rows(store):
        entry = found.setdefault(
            row.namespace,
            {
                "namespace": row.namespace,
                "label": _label(store, row.namespace),
                "pages": 0,
                "bytes": 0,
                "tokens": 0,
                "groups": [],
                "tiers": [],
            },
        )
        _count(entry, row)
    return list(found.values())[:limit]


def _count(entry: dict[str, object], row: _Row) -> None:
    entry["pages"] = int(str(entry["pages"])) + 1
    entry["bytes"] = int(str(entry["bytes"])) + row.nbytes
    entry["tokens"] = max(int(str(entry["tokens"])), row.position)
    for name, values in (("groups", [row.group]), ("tiers", row.tiers)):
        known = entry[name]
        assert isinstance(known, list)
        known += [value for value in values if value not in known]


def _label(store: "BlockStore", namespace: str) -> str:
    from omlx_cache_storage.keys import BlockKey

    document = store.document(BlockKey(bytes.fromhex(namespace)))
    return str(document.get("model_id") or str(document.get("model", ""))[:12])


def _page_row(row: _Row, now: float) -> dict[str, object]:
    return {
        "key": row.key,
        "group": row.group,
        "position": row.position,
        "tokens": row.tokens,
        "bytes": row.nbytes,
        "tiers": row.tiers,
        "namespace": row.namespace,
        "path": row.path,
        "age_s": None,
    }


def _inspect(store: "BlockStore", args: Mapping[str, object]) -> list[dict[str, object]]:
    prefix = args.get("key_prefix")
    if not isinstance(prefix, str) or not prefix:
        raise ValueError("key_prefix must be a non-empty text of hex digits")
    metas = {(m.key.hex(), m.group): m for m, _tier in store.hot.metas()}
    rows = [row for row in _rows(store) if row.key.startswith(prefix.lower())]
    return [_detail(row, metas.get((row.key, row.group))) for row in rows[: _limit(args)]]


def _detail(row: _Row, meta: PageMeta | None) -> dict[str, object]:
    detail = _page_row(row, time.time())
    if row.path:
        try:
            from pathlib import Path

            return {**detail, **describe(Path(row.path)), "tiers": row.tiers}
        except PageError as error:
            detail["error"] = str(error)
    if meta is not None:
        detail |= {
            "parent": meta.parent.hex(),
            "codec": meta.codec,
            "checksum": None,
            "tensors": [
                {"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in meta.tensors
            ],
        }
    return detail


def _clear(store: "BlockStore", args: Mapping[str, object]) -> dict[str, object]:
    from omlx_cache_storage.keys import BlockKey

    namespace = args.get("namespace")
    if not isinstance(namespace, str) or len(namespace) != 64:
        raise ValueError("namespace must be 64 hex digits")
    return {"pages": store.clear(BlockKey(bytes.fromhex(namespace)))}


def _limit(args: Mapping[str, object]) -> int:
    limit = args.get("limit")
    return limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT
