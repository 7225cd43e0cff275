"""A router for several `omlx-cache serve --status`: a chat goes to the machine that has its prefix.

OMLX_CACHE_STATUS_TOKEN=... python examples/router.py http://mac1:8080 http://mac2:8080"""

import argparse
import http.client
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

DEADLINE = 0.3  # seconds that a request waits for what the machines know of its prompt
BUSY_TOKENS = 4096  # so many cached tokens are worth waiting behind one request more
DOWN_SECONDS = 5.0  # for which a machine that did not answer is tried last
OWN_HEADERS = {"connection", "keep-alive", "transfer-encoding", "host", "date", "server"}
FAILED = (OSError, http.client.HTTPException)


class Machine:
    """A server; `lock` guards `under_way`, how many requests it was given and has not ended."""

    def __init__(self, url: str) -> None:
        self.url, self.where = url, urlsplit(url)
        self.lock, self.under_way, self.down_until = threading.Lock(), 0, 0.0

    def send(self, method: str, path: str, body: bytes, headers: Any, seconds: float) -> Any:
        """Return the answer to a request, to be closed; raises FAILED, and remembers it."""
        client = http.client.HTTPConnection(self.where.hostname or "", self.where.port, seconds)
        try:
            client.request(method, path, body or None, {**headers, "Connection": "close"})
            return client.getresponse()
        except FAILED as error:
            if not isinstance(error, TimeoutError):  # One that is only slow is no worse than busy.
                self.down_until = time.monotonic() + DOWN_SECONDS
            raise

    def cached(self, body: bytes, token: str) -> int:
        """Return how many of a prompt's tokens are on this machine; 0 where that is not told."""
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            with self.send("POST", "/lookup", body, headers, DEADLINE) as answer:
                known = json.loads(answer.read()) if answer.status == 200 else {}
                return int(known.get("hot_tokens", 0)) + int(known.get("cold_tokens", 0))
        except (*FAILED, ValueError):
            return 0


class Handler(BaseHTTPRequestHandler):
    machines: tuple[Machine, ...] = ()
    token, pool = os.environ.get("OMLX_CACHE_STATUS_TOKEN", ""), ThreadPoolExecutor(64)

    def best_first(self, body: bytes) -> list[Machine]:
        """Return the machines in the order in which they are to be tried."""
        asked = {self.pool.submit(m.cached, body, self.token): m for m in self.machines}
        tokens = {asked[future]: future.result() for future in wait(asked, DEADLINE).done}
        worth = {m: tokens.get(m, 0) - BUSY_TOKENS * m.under_way for m in self.machines}
        return sorted(self.machines, key=lambda m: (m.down_until > time.monotonic(), -worth[m]))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in OWN_HEADERS}
        for machine in self.best_first(body):
            with machine.lock:
                machine.under_way += 1
            try:
                with suppress(*FAILED):
                    answer = machine.send(self.command, self.path, body, headers, 600.0)
                    return self.pass_on(answer, machine.url)
            finally:
                with machine.lock:
                    machine.under_way -= 1
        return self.send_error(502, "no machine answers")

    def pass_on(self, answer: Any, url: str) -> None:
        """Send an answer on as it comes; one that breaks off ends, as no other can follow it."""
        with suppress(*FAILED), answer:
            self.send_response(answer.status)
            for name, value in [*answer.getheaders(), ("X-Served-By", url)]:
                if name.lower() not in OWN_HEADERS:
                    self.send_header(name, value)
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(piece)

    do_GET = do_POST


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machines", nargs="+", type=Machine)
    parser.add_argument("--port", type=int, default=9000)
    Handler.machines = tuple(parser.parse_args().machines)
    router = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"Listening on http://127.0.0.1:{router.server_port}", flush=True)
    router.serve_forever()
