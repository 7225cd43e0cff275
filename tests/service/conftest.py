"""The service in a process of its own, with a real socket on which it tells how it is."""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

SERVICE = ("-m", "omlx_cache_daemon.service")


class Daemon:
    """A running service; what it told the manager is in `told`."""

    def __init__(
        self, home: Path, *flags: str, start: Sequence[str] = SERVICE, **variables: str
    ) -> None:
        self._command = start
        self.home = home
        self.cold_dir = home / "cold"
        self.told: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # One that begins with a zero byte, in the end: it has no file.
        address = variables.get("NOTIFY_SOCKET", str(home / "notify"))
        self._socket.bind(address.replace("@", "\0", 1))
        self.environment = {
            **{name: value for name, value in os.environ.items() if "OMLX" not in name},
            "HOME": str(home),
            "XDG_CONFIG_HOME": "",
            "OMLX_CACHE_RUNTIME_DIR": str(home / "run"),
            "OMLX_CACHE_COLD_DIR": str(self.cold_dir),
            "NOTIFY_SOCKET": str(home / "notify"),
            "PYTHONPATH": os.pathsep.join(sys.path),
            **variables,
        }
        self.log = home / "log"
        self.process = self.start(*flags)

    def start(self, *flags: str) -> "subprocess.Popen[str]":
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, *self._command, *flags],
                env=self.environment,
                stderr=log,
                text=True,
            )

    def wait_for(self, line: str, seconds: float = 30.0) -> str:
        """Return the first message from now on that has a line which begins so."""
        deadline = time.monotonic() + seconds
        while select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
            message = self._socket.recv(65536).decode()
            self.told.append(message)
            if any(one.startswith(line) for one in message.splitlines()):
                return message
        raise AssertionError(f"nothing of {line} in {self.told}: {self.log.read_text()}")

    @property
    def socket(self) -> str:
        """The path of its control socket."""
        return str(self.home / "run" / f"service-{self.process.pid}.sock")

    def run(
        self, *arguments: str, module: str = "omlx_cache_daemon"
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command beside it."""
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._socket.close()


@contextlib.contextmanager
def short_home() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name; pytest's own do not."""
    home = Path(tempfile.mkdtemp(prefix=f"os-{os.getpid()}-", dir="/tmp"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def home() -> Iterator[Path]:
    with short_home() as made:
        yield made


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One service for the tests of a file that leave it as it was."""
    with short_home() as made:
        started = Daemon(made, WATCHDOG_USEC="600000")
        started.wait_for("READY=1")
        yield started
        started.close()
