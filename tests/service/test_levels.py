"""One level of the tree of prefixes out of those of several processes."""

from omlx_cache_daemon.service.levels import merged


def _row(
    key: str, hot: int, cold: int, used_at: float, text: str | None = None
) -> dict[str, object]:
    tiers = {"hot": {"pages": hot, "bytes": 10 * hot}, "cold": {"pages": cold, "bytes": 10 * cold}}
    return {"key": key, "blocks": cold, "used_at": used_at, "tiers": tiers, "text": text}


def test_memory_counts_together_and_the_directory_once() -> None:
    one = {"rows": [_row("a", 2, 5, 1.0), _row("b", 1, 1, 9.0)], "more": 0, "found": True}
    two = {"rows": [_row("a", 3, 5, 4.0, "said")], "more": 2, "found": False}
    level = merged([one, two], 10)
    assert level["more"] == 2
    assert level["found"] is True
    rows = level["rows"]
    assert [row["key"] for row in rows] == ["b", "a"]
    assert rows[1]["tiers"] == {
        "hot": {"pages": 5, "bytes": 50},
        "cold": {"pages": 5, "bytes": 50},
    }
    assert (rows[1]["used_at"], rows[1]["text"]) == (4.0, "said")


def test_what_is_beyond_the_limit_is_counted() -> None:
    level = merged([{"rows": [_row(str(n), 0, 1, n) for n in range(5)], "more": 1}], 2)
    rows = level["rows"]
    assert [row["key"] for row in rows] == ["4", "3"]
    assert level["more"] == 4
    assert merged([], 5)["rows"] == []
