"""One level of the tree of prefixes out of those of several processes."""

from collections.abc import Sequence

from omlx_cache.status.documents import Document

Row = dict[str, object]


def merged(levels: Sequence[Document], limit: int) -> Document:
    """Return one document of the shape that each process gives. Memory is each process's own, and
    counts together; a directory is theirs in common, and counts once."""
    if not levels:
        return {"namespace": None, "parent": None, "rows": [], "more": 0, "found": False}
    rows: dict[object, Row] = {}
    more = 0
    for level in levels:
        left = level.get("more")
        more = max(more, left if isinstance(left, int) else 0)
        found = level.get("rows")
        for row in found if isinstance(found, list) else []:
            name = row.get("key", row.get("namespace"))
            rows[name] = _both(rows[name], row) if name in rows else dict(row)
    latest = sorted(rows.values(), key=lambda row: -_number(row.get("used_at")))
    beyond = max(0, len(latest) - limit)
    document: Row = {**levels[0], "rows": latest[:limit], "more": more + beyond}
    if any("found" in level for level in levels):
        document["found"] = any(level.get("found") for level in levels)
    return document


def _both(one: Row, other: Row) -> Row:
    """Return a prefix that two processes know of."""
    row = {**other, **{name: value for name, value in one.items() if value is not None}}
    for name in ("roots", "prefixes", "blocks", "children", "used_at"):
        if name in one and name in other:
            row[name] = max(_number(one[name]), _number(other[name]))
    row["tiers"] = {
        tier: {
            name: _sum(one, other, tier, name) if tier == "hot" else _most(one, other, tier, name)
            for name in ("pages", "bytes")
        }
        for tier in ("hot", "cold")
    }
    return row


def _sum(one: Row, other: Row, tier: str, name: str) -> float:
    return _part(one, tier, name) + _part(other, tier, name)


def _most(one: Row, other: Row, tier: str, name: str) -> float:
    return max(_part(one, tier, name), _part(other, tier, name))


def _part(row: Row, tier: str, name: str) -> float:
    tiers = row.get("tiers")
    part = tiers.get(tier) if isinstance(tiers, dict) else None
    return _number(part.get(name)) if isinstance(part, dict) else 0


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
