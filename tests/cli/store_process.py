"""A process with the real control server and answers of the shape that a store gives."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from kit.status import figures
from omlx_cache.control.errors import ControlError
from omlx_cache.control.server import serve_socket
from omlx_cache.requests.explanation import Explanation, RequestRecord, sentence

KEY = "ab" * 32
NAMESPACE = "cd" * 32


def _ls(args: Mapping[str, object]) -> object:
    if "namespace" not in args:
        return [
            {
                "namespace": NAMESPACE,
                "label": f"{sys.argv[1]}\x1b[31m",
                "pages": 2,
                "bytes": 3 * 2**20,
                "tokens": 512,
                "groups": ["paged"],
                "tiers": {"hot": 2, "cold": 1},
            }
        ]
    if not NAMESPACE.startswith(str(args["namespace"])):
        raise ControlError("not_found", f"no namespace begins with {args['namespace']}")
    page = {"group": "paged", "tokens": 256, "bytes": 2**20, "tiers": ["hot", "cold"], "age_s": 3.5}
    pages = [{"key": KEY, "position": 256, **page}, {"key": KEY[::-1], "position": 512, **page}]
    limit = args["limit"]
    assert isinstance(limit, int)
    return pages[:limit]


def _inspect(args: Mapping[str, object]) -> object:
    if not KEY.startswith(str(args["key_prefix"])):
        return []
    tensor = {"name": "0.keys", "dtype": "BF16", "shape": [1, 2, 256, 64]}
    return [{"key": KEY, "bytes": 2**20, "checksum": "12ab", "tensors": [tensor]}]


def _why(args: Mapping[str, object]) -> object:
    if args.get("number") not in (None, 3):
        return {"requests": []}
    there, here = "Today is\n2026-11-20", "Today is\x1b[31m 2026-11-21"
    told = Explanation(
        "diverged",
        48_211,
        5132,
        position=5132,
        other=2,
        other_at=0.0,
        here=(2,),
        there=(1,),
        here_text=here,
        there_text=there,
    )
    record = RequestRecord(
        3,
        0.0,
        NAMESPACE,
        "m",
        "",
        48_211,
        5132,
        cold_tokens=5132,
        restore_seconds=0.4,
        reason="diverged",
        total_seconds=31.5,
        computed_tokens=43_079,
        compute_seconds=31.0,
    )
    words = sentence(told, record)
    return {"requests": [{**record.to_dict(), "explanation": told.to_dict(), "words": words}]}


HANDLERS = {
    "ping": lambda args: {
        "pid": os.getpid(),
        "version": "0.1.0",
        "uptime_s": 12.5,
        "name": sys.argv[1],
    },
    "stats": lambda args: figures(misses={"absent": 7}),
    "ps": lambda args: {
        "pid": os.getpid(),
        "uptime_s": 12.5,
        "models": [sys.argv[1]],
        "hot": {"bytes": 2**20, "limit_bytes": 2**30, "pages": 3},
        "cold": {"bytes": 2**21, "limit_bytes": 2**31, "pages": 5},
        "pending": {"bytes": 0, "limit_bytes": 2**28},
        "sessions": 1,
    },
    "ls": _ls,
    "inspect": _inspect,
    "why": _why,
}

if __name__ == "__main__":
    chosen = sys.argv[2]
    server = serve_socket("auto" if chosen == "auto" else Path(chosen), HANDLERS)
    assert server is not None
    with server:
        print(server.path, flush=True)
        sys.stdin.read()
