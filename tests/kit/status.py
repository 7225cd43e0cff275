"""Operations with known answers, and plain HTTP clients, for tests of the server."""

import http.client
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omlx_cache.control.replies import ColdHolding, Holding, ProcessRow
from omlx_cache.control.serialization import encoded
from omlx_cache.control.server import ApiServer, serve_port
from omlx_cache.status.history import ProcessStatus
from omlx_cache.status.routes import Operations
from omlx_cache_storage.measures import Counters
from omlx_cache_storage.stats import (
    ColdUsage,
    HotUsage,
    MemoryUsage,
    RemoteUsage,
    Stats,
    WriterUsage,
)


def figures(**requests: object) -> dict[str, object]:
    """Return `statistics` as a store answers them."""
    return dict(json.loads(encoded(statistics(requests))))


def statistics(requests: Mapping[str, Any] | None = None, **parts: Any) -> Stats:
    """Return the stats of a small store, with other figures of its requests, and other parts."""
    counters = Counters()
    stats = Stats(
        uptime_seconds=1.5,
        hot=HotUsage(4, 4000, 5000, 8000, 8000, 1),
        cold=ColdUsage(9, 9000, 9500, 100_000, 2, 0, 0, 0, 0, "ok"),
        writer=WriterUsage(1, 1000, 3000, 4000, 9, 9000, 0, 0, 0),
        requests=replace(counters.requests(), **(requests or {})),
        snapshots=counters.snapshots(1 << 20),
        memory=MemoryUsage("normal", 1 << 30, 0, 0),
    )
    return replace(stats, **parts)


def remote_usage(**other: Any) -> RemoteUsage:
    """Return the stats of a remote tier that is used, with other figures."""
    usage = RemoteUsage(
        engine="redis",
        where="redis://10.0.0.7:6379/0",
        state="ok",
        known_pages=500,
        lookups=40,
        asked_pages=900,
        found_pages=600,
        late_lookups=1,
        read_pages=300,
        read_bytes=3 << 30,
        written_pages=77,
        written_bytes=1 << 30,
        pending_pages=3,
        latency_seconds=0.0004,
        bytes_per_second=1.1e9,
        errors={"remote_timeout": 3},
        lookup_phases=70,
    )
    return replace(usage, **other)


def process(pid: int = 1, name: str = "serve", **fields: Any) -> ProcessStatus:
    """Return a process as the operation `processes` has it."""
    usual: dict[str, Any] = {
        **{"uptime_s": 1.5, "models": (), "version": "0.1.0", "cold_dir": "/cold"},
        **{"service": {"port": 8080, "url": "http://127.0.0.1:8080"}, "stats": statistics()},
    }
    return ProcessStatus(pid=pid, name=name, **{**usual, **fields})


def process_row(**fields: Any) -> ProcessRow:
    """Return what a store answers to `ps`."""
    usual: dict[str, Any] = {
        **{"pid": 1, "name": "serve", "uptime_s": 1.5, "models": [], "version": "0.1.0"},
        **{"versions": {}, "remote": None, "sessions": 0},
        "hot": Holding(pages=4, bytes=4000, limit_bytes=8000),
        "cold": ColdHolding(pages=9, bytes=9000, limit_bytes=100_000, state="ok", dir="/cold"),
        "pending": Holding(pages=0, bytes=0),
    }
    return ProcessRow(**{**usual, **fields})


class Known:
    """What a test says that there is, and changes; `asked` are the questions."""

    def __init__(self, *processes: ProcessStatus) -> None:
        self.known: Sequence[Any] = processes or [process()]
        self.asked: list[tuple[object, ...]] = []
        self.found: list[dict[str, Any]] = []
        self.happened: list[dict[str, Any]] = []

    def processes(self) -> Sequence[Any]:
        return self.known

    def settings(self) -> Sequence[Mapping[str, object]]:
        return [{"pid": 1, "settings": {}}]

    def requests(self, limit: int) -> Sequence[Mapping[str, object]]:
        self.asked.append(("requests", limit))
        return self.found[:limit]

    def prefixes(
        self, namespace: str | None, parent: str | None, limit: int, *, text: bool = False
    ) -> Mapping[str, object]:
        self.asked.append(("prefixes", namespace, parent, limit, text))
        return {"rows": []}

    def events(self, after: int | None, limit: int) -> Mapping[str, object]:
        self.asked.append(("events", after, limit))
        first = after or 0
        return {
            "events": self.happened[first : first + limit],
            "upto": min(len(self.happened), first + limit),
            "dropped": 0,
        }


def operations(source: Any) -> Operations:
    """Return the operations of the status port that answer with what a source says."""
    return {
        "processes": lambda args: source.processes(),
        "settings": lambda args: source.settings(),
        "recent": lambda args: source.requests(args["limit"]),
        "prefixes": lambda args: source.prefixes(
            args.get("namespace"), args.get("parent"), args["limit"], text=args.get("text", False)
        ),
        "events": lambda args: source.events(args.get("after"), args["limit"]),
    }


def serve(source: Any, port: int = 0, token: str | None = None, **options: Any) -> ApiServer:
    """Answer at a port of loopback with what a source says."""
    return serve_port(operations(source), port, token, **options)


def get(
    server: ApiServer,
    path: str,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def said(server: ApiServer, request: bytes) -> bytes:
    """Return everything that a server says to raw bytes until it hangs up."""
    with socket.create_connection(server.server_address[:2], timeout=20) as client:
        client.sendall(request)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
        return answer
