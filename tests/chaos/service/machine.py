"""The processes: real servers with a tiny model, and the service, all on one directory."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kit.tinylm import Server, free_port, serve_ours

BUDGET = 6 * 2**20
PATIENCE = 60.0


class Service:
    """The service, with a port that it keeps over its restarts."""

    def __init__(self, home: Path) -> None:
        self._home, self._port = home, free_port()
        self._log = home / "service.log"
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        kept = {name: value for name, value in os.environ.items() if "OMLX_" not in name}
        flags = ("--status-port", str(self._port), "--scrub-bytes-per-second", "64MiB",
                 "--scrub-days", "0.001", "--min-free-bytes", "0")  # fmt: skip
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "omlx_cache_daemon.service", *flags],
                env={
                    **kept,
                    "OMLX_CACHE_COLD_DIR": str(self._home / "cold"),
                    "OMLX_CACHE_RUNTIME_DIR": str(self._home / "run"),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                stderr=log,
            )

    def restart(self) -> None:
        self.process.wait(30)
        self.process = self._start()

    def up(self) -> dict[int, float]:
        """Return which processes answer, by their ids; raises OSError."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as reply:
            text = reply.read().decode()
        return {
            int(sample.labels["pid"]): sample.value
            for family in text_string_to_metric_families(text)
            if family.name == "omlx_cache_up"
            for sample in family.samples
        }

    def failures(self) -> list[str]:
        """Return what the service has logged of faults of its own."""
        lines = self._log.read_text().splitlines()
        return [line for line in lines if "Traceback" in line or "not looked after" in line]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)


class Serving:
    """One of the servers. `disturbed` and `undisturbed`: when it was last, on the monotonic clock;
    requests of its own in between are excused."""

    def __init__(self, home: Path, model: Path, number: int) -> None:
        self._home, self._model, self.number = home, model, number
        self.disturbed, self.undisturbed = -1.0, 0.0
        self.server = self._start()

    def _start(self) -> Server:
        arguments = ("--model", str(self._model))
        log = self._home / f"server-{self.number}"
        log.mkdir(exist_ok=True)
        return serve_ours(
            log,
            *arguments,
            OMLX_CACHE_COLD_DIR=str(self._home / "cold"),
            OMLX_CACHE_RUNTIME_DIR=str(self._home / "run"),
            OMLX_CACHE_COLD_BYTES=str(BUDGET),
            OMLX_CACHE_HOT_BYTES="8MiB",
        )

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def is_excused(self, began: float) -> bool:
        """True when a request that began then may have met this server's own end."""
        return self.disturbed > self.undisturbed or self.undisturbed >= began

    def begin(self) -> None:
        self.disturbed = time.monotonic()

    def end(self) -> None:
        self.undisturbed = time.monotonic()

    def restart(self) -> None:
        self.server.wait()
        self.server = self._start()

    def close(self) -> None:
        self.server.process.send_signal(signal.SIGCONT)
        self.server.kill()
