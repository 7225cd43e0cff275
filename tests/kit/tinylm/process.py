"""A model server in a process of its own, and an official client for it."""

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from openai import OpenAI

from kit.forks import CAN_FORK, Forked, environment, fork
from kit.remote.processes import NotYet, eventually, free_port

_START_SECONDS = 90.0


@dataclass
class LmServer:
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


def serve_ours(home: Path, *arguments: str, forked: bool = False, **variables: str) -> LmServer:
    """Start `omlx-cache serve` with a cold tier and runtime directory under `home`.

    `forked` saves the imports where the system can fork after them.
    """
    variables = cached_environment(home, variables)
    command = ["-m", "omlx_cache_daemon", "serve", "--port", "0", *arguments]
    return start_server(home / "serve.log", command, variables, forked=forked)


def run_server(home: Path, name: str, *arguments: str) -> LmServer:
    """Start `omlx-cache run NAME`, forked where the system can do that, with a cold tier and
    runtime directory under `home`."""
    port, variables = free_port(), cached_environment(home, {})
    command = ["-m", "omlx_cache_daemon", "run", name, *arguments, "--port", str(port)]
    return start_server(home / "run.log", command, variables, port, forked=True)


def serve_upstream(home: Path, *arguments: str, forked: bool = False) -> LmServer:
    """Start mlx-lm's own server."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = ["-m", "mlx_lm", "server", "--port", str(port), *arguments]
    return start_server(home / "upstream.log", command, environment(), port, forked=forked)


def cached_environment(home: Path, variables: dict[str, str]) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    return {
        **environment(),
        "OMLX_CACHE_COLD_DIR": str(home / "cold"),
        "OMLX_CACHE_RUNTIME_DIR": str(home / "run"),
        "OMLX_CACHE_HOT_BYTES": "256MiB",
        "OMLX_CACHE_COLD_BYTES": "1GiB",
        "OMLX_CACHE_MIN_FREE_BYTES": "0",
        "OMLX_CACHE_BLOCK_SIZE": "64",
        **variables,
    }


def start_server(
    log: Path,
    command: list[str],
    variables: dict[str, str],
    port: int | None = None,
    *,
    forked: bool = False,
) -> LmServer:
    """Start a program; return once it answers at the port, or where its first line says."""
    with log.open("a") as stderr:
        if forked and CAN_FORK:
            process = fork(command[1:], variables, stderr.fileno())
        else:
            process = subprocess.Popen(
                [sys.executable, *command],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
    url = f"http://127.0.0.1:{port}"
    if port is None:
        line = process.stdout.readline()
        if not line.startswith("Listening on "):
            raise AssertionError(f"the server said {line!r}\n{log.read_text()}")
        url = line.split()[-1]
    server = LmServer(process, url, log)

    def answers() -> None:
        if process.poll() is not None:
            raise AssertionError(f"the server ended\n{server.text()}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            raise NotYet(server.text()) from None

    eventually(answers, "the start of a server", _START_SECONDS)
    return server
