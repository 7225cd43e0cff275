"""A process with the real control server and answers of the shape that a store gives."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from kit.status import figures, process_row
from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import (
    ExplainedRequest,
    Holding,
    Identity,
    NamespaceRow,
    PageRow,
    Remembered,
    WhyReply,
)
from omlx_cache.control.serialization import extended
from omlx_cache.control.server import serve_socket
from omlx_cache.requests.explanation import Explanation, RequestRecord, sentence

NAMESPACE = "cd" * 32


def _ls(args: Mapping[str, object]) -> object:
    if "namespace" not in args:
        return [
            NamespaceRow(
                namespace=NAMESPACE,
                label=f"{sys.argv[1]}\x1b[31m",
                pages=2,
                bytes=3 * 2**20,
                tokens=512,
                groups=["paged"],
                tiers=["hot", "cold"],
                created_at=None,
                used_at=None,
                versions={},
                salt="",
            )
        ]
    if not NAMESPACE.startswith(str(args["namespace"])):
        raise ControlError("not_found", f"no namespace begins with {args['namespace']}")
    limit = args["limit"]
    return [_page("ab" * 32, 256), _page("ba" * 32, 512)][:limit]


def _page(key: str, position: int) -> PageRow:
    return PageRow(
        key=key,
        group="paged",
        position=position,
        tokens=256,
        bytes=2**20,
        tiers=["hot", "cold"],
        namespace=NAMESPACE,
        path="",
        age_s=3.5,
    )


def _why(args: Mapping[str, object]) -> object:
    if args.get("number") not in (None, 3):
        return WhyReply([], Remembered(0, 0, 0.0))
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
    one = extended(ExplainedRequest, record, pid=os.getpid(), explanation=told, words=words)
    return WhyReply([one], Remembered(0, 0, 0.0))


def _identity() -> Identity:
    name = sys.argv[1]
    return Identity(pid=os.getpid(), version="0.1.0", uptime_s=12.5, name=name, models=[name])


def _ps(args: Mapping[str, object]) -> object:
    name, hot = sys.argv[1], Holding(bytes=2**20, limit_bytes=2**30, pages=3)
    return process_row(pid=os.getpid(), uptime_s=12.5, name=name, models=[name], hot=hot)


HANDLERS = {
    "ping": lambda args: _identity(),
    "stats": lambda args: figures(misses={"absent": 7}),
    "ps": _ps,
    "requests": lambda args: {"upto": 0, "records": []},
    "ls": _ls,
    "why": _why,
}

if __name__ == "__main__":
    chosen = sys.argv[2]
    server = serve_socket("auto" if chosen == "auto" else Path(chosen), HANDLERS)
    assert server is not None
    with server:
        print(server.path, flush=True)
        sys.stdin.read()
