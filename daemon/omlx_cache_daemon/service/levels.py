"""One level of the tree of prefixes out of those of several processes."""

from collections.abc import Mapping, Sequence
from typing import Any

Level = Mapping[str, Any]


def merged(levels: Sequence[Level], limit: int) -> Level:
    """Return one document of the shape that each process gives. Memory is each process's own, and
    counts together; a directory is theirs in common, and counts once."""
    if not levels:
        return {"namespace": None, "parent": None, "rows": [], "more": 0, "found": False}
    rows: dict[str, Level] = {}
    for level in levels:
        for row in level["rows"]:
            name = row.get("key") or row["namespace"]
            rows[name] = _both(rows[name], row) if name in rows else row
    latest = sorted(rows.values(), key=lambda row: -(row["used_at"] or 0))
    more = max(level["more"] for level in levels) + max(0, len(latest) - limit)
    found = {"found": any(level["found"] for level in levels)} if "found" in levels[0] else {}
    return {**levels[0], "rows": latest[:limit], "more": more, **found}


def _both(one: Level, other: Level) -> Level:
    """Return a prefix that two processes know of."""
    row = {**other, **{name: value for name, value in one.items() if value is not None}}
    for name in ("roots", "prefixes", "blocks", "children", "used_at"):
        if name in one:
            row[name] = max(one[name] or 0, other[name] or 0)
    mine, theirs = one["tiers"], other["tiers"]
    row["tiers"] = {
        "hot": {name: count + theirs["hot"][name] for name, count in mine["hot"].items()},
        "cold": {name: max(count, theirs["cold"][name]) for name, count in mine["cold"].items()},
    }
    return row
