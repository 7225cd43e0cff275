"""A status source made up for the page: as many processes, requests and prefixes as a test says."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kit.status import Known
from kit.units import GIB

Document = Mapping[str, Any]
NAMESPACE = hashlib.sha256(b"namespace").hexdigest()


def process(pid: int = 4711, **fields: Any) -> dict[str, Any]:
    """Return a process that has been busy for an hour."""
    return {
        "pid": pid,
        "name": "serve",
        "title": "serve :8080, Qwen3-8B-4bit",
        "role": "store",
        "version": "0.1.0",
        "uptime_s": 4210.5,
        "models": ["mlx-community/Qwen3-8B-4bit"],
        "cold_dir": "/Users/me/Library/Caches/omlx-cache",
        "stats": stats(),
        "error": None,
        **fields,
    }


def stats(**parts: Any) -> dict[str, Any]:
    return {
        "uptime_seconds": 4210.5,
        "hot": {
            "pages": 812,
            "nbytes": 3 * GIB,
            "limit_bytes": 4 * GIB,
            "allowed_bytes": 4 * GIB,
            "evicted_pages": 90,
        },
        "cold": {
            "pages": 10_240,
            "nbytes": 38 * GIB,
            "limit_bytes": 100 * GIB,
            "evicted_pages": 17,
            "corrupt_pages": 0,
            "undecodable_pages": 0,
            "ignored_files": 0,
            "state": "ok",
            "day_limit_bytes": 0,
        },
        "writer": {
            "pending_pages": 12,
            "pending_bytes": 48 * 2**20,
            "written_pages": 10_257,
            "written_bytes": 39 * GIB,
            "dropped_pages": 0,
            "failed_pages": 0,
        },
        "memory": {"level": "normal"},
        "requests": {
            "sessions": 143,
            "live_sessions": 1,
            "asked_tokens": 1_840_000,
            "restored_tokens": 1_402_112,
            "restored_cold_tokens": 302_080,
            "saved_seconds": 2380.0,
        },
        **parts,
    }


def remote(**fields: Any) -> dict[str, Any]:
    """Return the figures of a store that machines share."""
    return {
        "engine": "redis",
        "where": "rediss://cache.lab.example.org:6379",
        "state": "ok",
        "asked_pages": 12_480,
        "found_pages": 9_310,
        "read_bytes": 74 * GIB,
        "written_bytes": 21 * GIB,
        "pending_pages": 14,
        "dropped_pages": 0,
        "failed_pages": 0,
        "bad_pages": 0,
        "latency_seconds": 0.00042,
        **fields,
    }


def request(number: int, **fields: Any) -> dict[str, Any]:
    """Return a request, the latest with number 1."""
    return {
        "number": 41 - number,
        "pid": 4711,
        "asked_at": time.time() - 30 * number,
        "namespace": NAMESPACE,
        "model": "mlx-community/Qwen3-8B-4bit",
        "salt": "",
        "prompt_tokens": 12_345,
        "restored_tokens": 11_776,
        "cold_tokens": 0,
        "reason": "new_text",
        "total_seconds": 1.7,
        "first_token_seconds": 0.412,
        "why": "24 were new: it continues request 41.",
        **fields,
    }


def prefix(name: str, first: int, last: int, *, children: int = 0, **fields: Any) -> dict[str, Any]:
    blocks = (last - first) // 256
    return {
        "key": hashlib.sha256(name.encode()).hexdigest(),
        "first": first,
        "last": last,
        "tokens": last - first,
        "blocks": blocks,
        "children": children,
        "prefixes": max(1, children),
        "rootless": False,
        "pinned": False,
        "tiers": {
            "hot": {"pages": 0, "bytes": 0},
            "cold": {"pages": blocks, "bytes": blocks * 9 * 2**20},
        },
        "used_at": time.time() - 90,
        **fields,
    }


class MadeUp(Known):
    """A source of one namespace whose prefixes begin alike, and part in `prefixes` ways; a test may
    change any field while it is served."""

    def __init__(self, prefixes: int = 10, label: str = "mlx-community/Qwen3-8B-4bit") -> None:
        super().__init__()
        self.known = [process()]
        self.found = [request(number, model=label) for number in range(1, 41)]
        self.prefix_count = prefixes
        self.label = label
        self.configured: Mapping[str, Any] = {
            "hot_bytes": {
                "value": 4 * GIB,
                "rendered": "4 GiB",
                "kind": "argument",
                "origin": "flag --hot-bytes",
            },
            "cold_bytes": {
                "value": 100 * GIB,
                "rendered": "100 GiB",
                "kind": "environment",
                "origin": "environment OMLX_CACHE_COLD_BYTES",
            },
            "block_size": {
                "value": 256,
                "rendered": "256",
                "kind": "default",
                "origin": "default",
            },
        }

    def settings(self) -> Sequence[Document]:
        return [
            {"pid": one["pid"], "title": one["title"], "settings": self.configured, "notes": []}
            for one in self.known
        ]

    def prefixes(
        self, namespace: str | None, parent: str | None, limit: int, *, text: bool = False
    ) -> Document:
        super().prefixes(namespace, parent, limit, text=text)
        rows: list[dict[str, Any]] = []
        more = 0
        if not self.prefix_count:
            pass
        elif namespace is None:
            root = prefix("root", 0, 2560, children=self.prefix_count)
            rows = [
                {
                    "namespace": NAMESPACE,
                    "model": self.label,
                    "salt": "",
                    "roots": 1,
                    "prefixes": self.prefix_count,
                    "blocks": 10 + self.prefix_count,
                    "tiers": root["tiers"],
                    "used_at": root["used_at"],
                    "text": True,
                }
            ]
        elif parent is None:
            rows = [prefix("root", 0, 2560, children=self.prefix_count)]
        elif parent == prefix("root", 0, 2560)["key"]:
            shown = range(min(limit, self.prefix_count))
            rows = [prefix(str(n), 2560, 2560 + 256 * (1 + n % 9)) for n in shown]
            more = self.prefix_count - len(rows)
        if text and namespace is not None:
            for row in rows:
                row["text"] = f"You are a helpful assistant of {self.label}. <b>Answer</b> briefly."
        return {"namespace": namespace, "parent": parent, "rows": rows, "more": more, "found": True}
