"""Programs forked from a process that has imported MLX and transformers already.

Importing them takes over a second, and a test that ends its servers needs several. A forked program
has its own arguments, environment, descriptors and signals, and ends as an interpreter does.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from typing import IO

CAN_FORK = sys.platform == "linux"
"""Elsewhere MLX's device does not survive a fork."""

_SECONDS = 90.0


class Forked:
    """A forked program, with what tests use of `subprocess.Popen`."""

    def __init__(
        self, pid: int, stdout: IO[str], status: int, stdin: IO[str] | None = None
    ) -> None:
        self.pid, self.stdout, self.stdin = pid, stdout, stdin
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._read(0.0)

    def wait(self, timeout: float) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, None]:
        """End its input and return what else it prints, at its end."""
        if self.stdin is not None:
            self.stdin.close()
        said = "" if self.stdout.closed else self.stdout.read()
        self.stdout.close()
        self.wait(timeout)
        return said, None

    def _read(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode


def fork(
    command: list[str],
    environment: dict[str, str],
    stderr: int,
    stdin: int | None = None,
    written: IO[str] | None = None,
) -> Forked:
    """Start `python -m COMMAND...`, or a program with `-c`, whose standard output the result reads;
    without `stdin` it has nothing to read itself, and `written` is the other end of that."""
    theirs = parent()
    output, stdout = os.pipe()
    ended, status = os.pipe()
    message = json.dumps({"command": command, "environment": environment}).encode()
    try:
        more = [] if stdin is None else [stdin]
        socket.send_fds(theirs, [message], [stdout, stderr, status, *more])
    finally:
        os.close(stdout)
        os.close(status)
    return Forked(int(theirs.recv(16)), open(output), ended, written)


def fork_to_talk(command: list[str], environment: dict[str, str]) -> Forked:
    """`fork`, with standard input that the result writes, and standard error of this process."""
    stdin, written = os.pipe()
    try:
        return fork(command, environment, 2, stdin, open(written, "w"))
    finally:
        os.close(stdin)


def run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run `python -m COMMAND...` to its end, forked where that is possible."""
    with tempfile.TemporaryFile("w+") as stderr:
        if CAN_FORK:
            program = fork(command, environment, stderr.fileno())
            with program.stdout as stdout:
                said = stdout.read()
            code = program.wait(_SECONDS)
        else:
            whole = [sys.executable, "-m", *command]
            done = subprocess.run(
                whole, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True,
                timeout=_SECONDS,
            )  # fmt: skip
            said, code = done.stdout, done.returncode
        stderr.seek(0)
        return subprocess.CompletedProcess(command, code, said, stderr.read())


def environment() -> dict[str, str]:
    """This process's own, without settings: in it a program imports what this one can."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }


@cache
def parent() -> socket.socket:
    """The socket of the process that forks, which is started once and ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.forking"], stdin=theirs, env=environment()
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait(30)

    atexit.register(end)
    return ours
