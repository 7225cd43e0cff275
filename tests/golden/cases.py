"""What the golden directory holds, and the commands that write and restore it."""

from pathlib import Path
from typing import Any

COMMIT = "7f87c969bf036041eac47edd38040f46a8276450"
DATA = Path(__file__).parent / "data"
BLOCK = 16
BUDGET = 8 << 20

PLAIN: dict[str, Any] = {}
PACKED: dict[str, Any] = {"codec": "k8v4", "min_quantize_tokens": 0}
ZSTD: dict[str, Any] = {"cold_codec": "zstd"}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": (PLAIN, {"do": "ask", "seed": 1, "count": 41}),
    "dense, going on": (PLAIN, {"do": "ask", "seed": 1, "count": 70}),
    "dense, whole blocks": (PLAIN, {"do": "ask", "seed": 2, "count": 32}),
    "salt": (PLAIN, {"do": "ask", "seed": 1, "count": 41, "salt": "tenant"}),
    "extra": (PLAIN, {"do": "ask", "seed": 1, "count": 20, "extra": {"lora": "7"}}),
    "state": (PLAIN, {"do": "ask", "seed": 3, "count": 41, "kinds": ["kv", "state"]}),
    "window": (PLAIN, {"do": "ask", "seed": 4, "count": 57, "kinds": ["kv", "window"]}),
    "keep": (PLAIN, {"do": "ask", "seed": 5, "count": 57, "kinds": ["kv", "keep"]}),
    "all kinds": (
        PLAIN,
        {"do": "ask", "seed": 6, "count": 41, "kinds": ["state", "window", "kv"]},
    ),
    "kv_bits": (
        PLAIN,
        {"do": "encoded", "seed": 7, "count": 41, "kv_bits": 8, "kv_group_size": 32},
    ),
    "codec": (PACKED, {"do": "encoded", "seed": 8, "count": 41}),
    "zstd": (ZSTD, {"do": "ask", "seed": 9, "count": 41}),
}
"""By name: settings of the store, and the request."""

LATER = {"do": "ask", "seed": 20, "count": 41, "salt": "later"}
"""What is written, and cleared, after the directory was put away: its ledger's records are kept."""


def settings(directory: Path, **fields: Any) -> dict[str, Any]:
    return {
        "cold_dir": str(directory),
        "cold_bytes": BUDGET,
        "hot_bytes": 0,
        "queue_bytes": "4MiB",
        "min_free_bytes": 0,
        "durability": "none",
        "socket": "off",
        "block_size": BLOCK,
        **fields,
    }


def lookup(case: dict[str, Any]) -> dict[str, Any]:
    """The look-up of a case's tokens."""
    return {**case, "do": "lookup"}
