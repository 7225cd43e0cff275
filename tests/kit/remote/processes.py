"""Servers of other people, in processes of their own that end with the test, however that ends."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

_WITH_ITS_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""
_STARTS_WITHIN = 30.0
T = TypeVar("T")


class NotYet(Exception):
    """What is waited for is not so yet."""


def eventually(seen: Callable[[], T], what: str, seconds: float = _STARTS_WITHIN) -> T:
    """Return what `seen` returns, once it no longer raises NotYet; fails after a generous time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return seen()
        except NotYet as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} took more than {seconds:.0f} s: {error}") from None
            time.sleep(0.02)


class ServerProcess:
    """A program that is started, stopped, suspended and killed. Used by one thread."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = list(command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def begin(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WITH_ITS_PARENT, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def check(self) -> None:
        """Raise AssertionError, with what it said last, unless it runs."""
        if self._process.poll() is not None:
            raise AssertionError(f"it ended with {self._process.returncode}: {self.log()[-800:]}")

    def kill(self) -> None:
        """End it at once, as a power cut would; also a suspended one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def suspend(self) -> None:
        """Let it answer nothing more, while its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def free_port(also: int = 0) -> int:
    """Return a port on loopback that nobody has, nor the one `also` above it, and that the system
    gives nobody who asks for any."""
    for _attempt in range(200):
        port = random.randrange(15_000, 22_000)
        with contextlib.ExitStack() as bound, contextlib.suppress(OSError):
            for one in {port, port + also}:
                listening = bound.enter_context(socket.socket())
                listening.bind(("127.0.0.1", one))
            return port
    raise AssertionError("no free port on loopback")


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
