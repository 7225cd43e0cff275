"""The service in a process of its own, with a real socket on which it tells how it is."""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kit.storage import Story, write_pages
from kit.trees import short_directory

SERVICE = ("-m", "omlx_cache_daemon.service")


class Daemon:
    """A running service; what it told the manager is in `told`."""

    def __init__(
        self, home: Path, *flags: str, start: Sequence[str] = SERVICE, **variables: str
    ) -> None:
        self._command = (*start, *flags)
        self.home, self.cold_dir, self.log = home, home / "cold", home / "log"
        self.told: list[str] = []
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # One that begins with a zero byte, in the end: it has no file.
        address = variables.get("NOTIFY_SOCKET", str(home / "notify"))
        self._manager.bind(address.replace("@", "\0", 1))
        self.environment = {
            **{name: value for name, value in os.environ.items() if "OMLX" not in name},
            "HOME": str(home),
            "XDG_CONFIG_HOME": "",
            "OMLX_CACHE_RUNTIME_DIR": str(home / "run"),
            "OMLX_CACHE_COLD_DIR": str(self.cold_dir),
            "NOTIFY_SOCKET": str(home / "notify"),
            **variables,
        }
        self.start()

    def start(self) -> None:
        """Start it, once more, and wait until it is ready."""
        with self.log.open("a") as log:
            command = [sys.executable, *self._command]
            self.process = subprocess.Popen(command, env=self.environment, stderr=log, text=True)
        self.wait_for("READY=1")

    def hears(self, line: str, seconds: float) -> str:
        """Return the first message from now on that has a line which begins so, "" for none."""
        deadline = time.monotonic() + seconds
        while select.select([self._manager], [], [], max(0.0, deadline - time.monotonic()))[0]:
            message = self._manager.recv(65536).decode()
            self.told.append(message)
            if any(one.startswith(line) for one in message.splitlines()):
                return message
        return ""

    def wait_for(self, line: str) -> str:
        message = self.hears(line, 30.0)
        assert message, f"nothing of {line} in {self.told}: {self.log.read_text()}"
        return message

    @property
    def socket(self) -> str:
        """The path of its control socket."""
        return str(self.home / "run" / f"service-{self.process.pid}.sock")

    @property
    def url(self) -> str:
        """Where its port is, as its log says last."""
        return re.findall(r"http://\S+(?=/status)", self.log.read_text())[-1]

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

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)
        self.wait_for("READY=1")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@contextlib.contextmanager
def started(home: Path, *flags: str, **options: str) -> Iterator[Daemon]:
    """A service that is ready, until the block ends."""
    daemon = Daemon(home, *flags, **options)
    try:
        yield daemon
    finally:
        daemon.kill()
        daemon._manager.close()


@pytest.fixture
def home() -> Iterator[Path]:
    with short_directory() as made:
        yield made


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One service for the tests of a file that leave it as it was."""
    with short_directory() as made, started(made, WATCHDOG_USEC="600000") as running:
        yield running


@pytest.fixture
def story() -> Story:
    return Story(nbytes=64 * 1024)


@pytest.fixture
def filled(tmp_path: Path, story: Story) -> Path:
    """A directory with forty pages, as a store left it."""
    numbers = range(1, 41)
    write_pages(tmp_path / "cold", story, *numbers, stamp_ns=10**18, limit_bytes=64 * 2**20)
    return tmp_path / "cold"
