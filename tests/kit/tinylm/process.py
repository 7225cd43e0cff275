"""A model server in a process of its own, and an official client for it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from openai import OpenAI

from kit.forks import CAN_FORK, Forked, fork

_START_SECONDS = 90.0


@dataclass
class Server:
    """A running server. `stop` asks it to end as a person would; `kill` gives it no chance."""

    process: "subprocess.Popen[str] | Forked"
    url: str
    log: Path

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Block until the process has ended and return its exit code."""
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def text(self) -> str:
        """What the server has logged."""
        return self.log.read_text()


def serve_ours(home: Path, *arguments: str, forked: bool = False, **variables: str) -> Server:
    """Start `omlx-cache serve` with a cold tier and runtime directory under `home`.

    `forked` saves the imports where the system can fork after them.
    """
    environment = _cached_environment(home, variables)
    command = ["-m", "omlx_cache_daemon", "serve", "--port", "0", *arguments]
    process, log = _start(home / "serve.log", command, environment, forked)
    line = process.stdout.readline()
    if not line.startswith("Listening on "):
        raise AssertionError(f"the server said {line!r}\n{log.read_text()}")
    server = Server(process, line.split()[-1], log)
    _wait_for(server)
    return server


def run_server(
    home: Path, name: str, *arguments: str, port: int | None = None, **variables: str
) -> Server:
    """Start `omlx-cache run NAME`, with a cold tier and runtime directory under `home`; a server
    that takes `--port`, or that listens on `port` anyway."""
    environment = _cached_environment(home, variables)
    if port is None:
        port = free_port()
        arguments = (*arguments, "--port", str(port))
    command = ["-m", "omlx_cache_daemon", "run", name, *arguments]
    process, log = _start(home / "run.log", command, environment)
    server = Server(process, f"http://127.0.0.1:{port}", log)
    _wait_for(server)
    return server


def serve_upstream(home: Path, *arguments: str, forked: bool = False) -> Server:
    """Start mlx-lm's own server."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = ["-m", "mlx_lm", "server", "--port", str(port), *arguments]
    process, log = _start(home / "upstream.log", command, _environment(), forked)
    server = Server(process, f"http://127.0.0.1:{port}", log)
    _wait_for(server)
    return server


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cached_environment(home: Path, variables: dict[str, str]) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    return {
        **_environment(),
        "OMLX_CACHE_COLD_DIR": str(home / "cold"),
        "OMLX_CACHE_RUNTIME_DIR": str(home / "run"),
        "OMLX_CACHE_HOT_BYTES": "256MiB",
        "OMLX_CACHE_COLD_BYTES": "1GiB",
        "OMLX_CACHE_MIN_FREE_BYTES": "0",
        "OMLX_CACHE_BLOCK_SIZE": "64",
        **variables,
    }


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _start(
    log: Path, command: list[str], environment: dict[str, str], forked: bool = False
) -> tuple["subprocess.Popen[str] | Forked", Path]:
    with log.open("a") as stderr:
        if forked and CAN_FORK:
            return fork(command[1:], environment, stderr.fileno()), log
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    return process, log


def _wait_for(server: Server) -> None:
    """Poll until the server answers; it offers nothing to wait on."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise AssertionError(f"the server ended\n{server.text()}")
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"no answer\n{server.text()}")
