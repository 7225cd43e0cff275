"""What the control socket answers: each operation reads the store and returns plain values."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache.control import ControlError
from omlx_cache_storage.cold.catalog import describe
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.keys import NAMESPACE_BYTES, BlockKey
from omlx_cache_storage.page import PageId, PageMeta
from omlx_cache_storage.recency import age_seconds

if TYPE_CHECKING:
    from omlx_cache.store import BlockStore

Handler = Callable[[Mapping[str, object]], object]
DEFAULT_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class _Row:
    """One page of either tier, or of both."""

    namespace: BlockKey
    page: PageId
    position: int
    tokens: int
    nbytes: int
    tiers: tuple[str, ...]
    used_ns: int
    path: Path | None = None
    meta: PageMeta | None = None


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


def _rows(store: "BlockStore") -> list[_Row]:
    """Return every page once, in the order of namespaces and tokens."""
    merged: dict[PageId, _Row] = {}
    for meta, tier, used_ns in store.hot.entries():
        merged[meta.id] = _Row(
            meta.namespace,
            meta.id,
            meta.position,
            meta.held,
            meta.nbytes,
            (tier,),
            used_ns,
            meta=meta,
        )
    for entry in store.cold.entries() if store.cold is not None else []:
        known = merged.get(entry.page)
        row = _Row(
            entry.namespace,
            entry.page,
            entry.info.position,
            entry.info.held,
            entry.info.nbytes,
            ("cold",),
            entry.used_ns,
            path=entry.path,
        )
        if known is not None:
            used_ns = max(known.used_ns, row.used_ns)
            row = replace(row, tiers=(*known.tiers, "cold"), used_ns=used_ns, meta=known.meta)
        merged[entry.page] = row
    return sorted(merged.values(), key=lambda r: (r.namespace, r.position, r.page.group, r.page))


def _ls(store: "BlockStore", args: Mapping[str, object]) -> list[dict[str, object]]:
    prefix, limit = args.get("namespace"), _limit(args)
    found: defaultdict[BlockKey, list[_Row]] = defaultdict(list)
    for row in _rows(store):
        found[row.namespace].append(row)
    if not isinstance(prefix, str) or not prefix:
        return [_namespace(store, name, rows) for name, rows in list(found.items())[:limit]]
    matches = [name for name in found if name.hex().startswith(prefix.lower())]
    if len(matches) != 1:
        what = "no namespace begins" if not matches else f"{len(matches)} namespaces begin"
        raise ControlError("not_found" if not matches else "ambiguous", f"{what} with {prefix}")
    return [_page(row) for row in found[matches[0]][:limit]]


def _namespace(store: "BlockStore", name: BlockKey, rows: Sequence[_Row]) -> dict[str, object]:
    tokens: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        tokens[row.page.group] += row.tokens
    document = store.document(name)
    return {
        "namespace": name.hex(),
        "label": str(document.get("model_id") or str(document.get("model", ""))[:12]),
        "pages": len(rows),
        "bytes": sum(row.nbytes for row in rows),
        # Layer groups cover the same tokens, so the best stocked one counts, not their sum.
        "tokens": max(tokens.values()),
        "groups": sorted(tokens),
        "tiers": sorted({tier for row in rows for tier in row.tiers}),
    }


def _page(row: _Row) -> dict[str, object]:
    """Return a page's row; `age_s` is None for one that is superseded and leaves first."""
    return {
        "key": row.page.key.hex(),
        "group": row.page.group,
        "position": row.position,
        "tokens": row.tokens,
        "bytes": row.nbytes,
        "tiers": list(row.tiers),
        "namespace": row.namespace.hex(),
        "path": "" if row.path is None else str(row.path),
        "age_s": age_seconds(row.used_ns, time.time_ns()),
    }


def _inspect(store: "BlockStore", args: Mapping[str, object]) -> list[dict[str, object]]:
    prefix = args.get("key_prefix")
    if not isinstance(prefix, str) or not prefix:
        raise ControlError("bad_request", "key_prefix must be a non-empty text of hex digits")
    rows = [row for row in _rows(store) if row.page.key.hex().startswith(prefix.lower())]
    return [_details(row) for row in rows[: _limit(args)]]


def _details(row: _Row) -> dict[str, object]:
    """Return what a page's file says of itself, else what the hot tier knows."""
    details = _page(row)
    if row.path is not None:
        try:
            return details | describe(row.path)
        except PageError as error:
            details["error"] = f"{error.reason}: {error}"
    if row.meta is not None:
        details |= {
            "parent": row.meta.parent.hex(),
            "codec": row.meta.codec,
            "checksum": None,
            "tensors": [
                {"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in row.meta.tensors
            ],
        }
    return details


def _clear(store: "BlockStore", args: Mapping[str, object]) -> dict[str, object]:
    namespace = args.get("namespace")
    if not isinstance(namespace, str) or len(namespace) != 2 * NAMESPACE_BYTES:
        raise ControlError("bad_request", f"namespace must be {2 * NAMESPACE_BYTES} hex digits")
    return {"pages": store.clear(BlockKey(bytes.fromhex(namespace)))}


def _limit(args: Mapping[str, object]) -> int:
    limit = args.get("limit")
    return limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT
