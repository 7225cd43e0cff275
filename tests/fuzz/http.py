"""Throws requests at a real `omlx-cache serve`: no crash, no hang and no growth, whatever mlx-lm
answers. `python -m fuzz.http --count 50000`, with `tests` on the path."""

import argparse
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.bodies import Sent, largest, requests
from kit.tinylm import Server, make_model, serve_ours
from kit.wire import Answer, completion, connected, exchange, read_answer

SECONDS = 60.0
"""An answer that takes longer is a hang."""


@dataclass
class Report:
    """What was seen. `wrong` holds the request that the server did not outlive."""

    sent: int = 0
    statuses: "Counter[int]" = field(default_factory=Counter)
    kinds: "Counter[str]" = field(default_factory=Counter)
    hangs: int = 0
    crashes: int = 0
    rss_before: int = 0
    rss_half: int = 0
    rss_after: int = 0
    seconds: float = 0.0
    wrong: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True when the server took it all, and grew by less than 96 MiB: what its caches of stop
        words and the allocator's pools may take."""
        return not (self.hangs or self.crashes) and self.rss_after - self.rss_before < 96 << 20

    def __str__(self) -> str:
        statuses = ", ".join(f"{s or 'closed'}: {n}" for s, n in sorted(self.statuses.items()))
        return (
            f"{self.sent} requests in {self.seconds:.0f} s; by status {statuses}; "
            f"{self.hangs} hangs, {self.crashes} crashes; resident "
            f"{self.rss_before >> 20} MiB before, {self.rss_half >> 20} half way "
            f"and {self.rss_after >> 20} MiB after"
        )


def main(count: int, seed: int) -> Report:
    """Send `count` requests to a server of a tiny model and return what was seen."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        model = make_model(home / "model", "qwen3")
        flags = ["--model", str(model), "--max-tokens", "1", "--log-level", "ERROR"]
        budgets = {"OMLX_CACHE_HOT_BYTES": "16MiB", "OMLX_CACHE_COLD_BYTES": "64MiB"}
        server = serve_ours(home, *flags, **budgets)
        try:
            return _attack(server, count, seed)
        finally:
            server.kill()


def _attack(server: Server, count: int, seed: int) -> Report:
    report = Report()
    began = time.monotonic()
    # What the process loads, and keeps of memory that it once needed, is no growth.
    for sent in largest(100, seed):
        _one(server, sent, Report())
    report.rss_before = _resident(server)
    for number, sent in enumerate(requests(count, seed)):
        if number == count // 2:
            report.rss_half = _resident(server)
        _one(server, sent, report)
        if server.process.poll() is not None:
            report.crashes += 1
            report.wrong.append((-1, sent.content[:2000]))
            break
    report.seconds = time.monotonic() - began
    report.rss_after = _resident(server) if not report.crashes else 0
    if not report.crashes:
        report.hangs += exchange(server.url, completion(prompt="still there?")).status != 200
        report.crashes += server.stop() != 0
    return report


def _one(server: Server, sent: Sent, report: Report) -> None:
    report.sent += 1
    report.kinds[sent.kind] += 1
    try:
        with connected(server.url, SECONDS) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(sent.content)
                if not sent.whole:
                    connection.shutdown(socket.SHUT_WR)
            answer = read_answer(connection)
    except TimeoutError:
        report.hangs += 1
        answer = Answer(0, {}, b"")
    except OSError:
        answer = Answer(0, {}, b"")
    report.statuses[answer.status] += 1


def _resident(server: Server) -> int:
    """Bytes of memory that the server's process has; 0 where there is no /proc."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen = main(given.count, given.seed)
    print(seen)
    for status, content in seen.wrong:
        print(status, content)
    sys.exit(0 if seen.sound else 1)
