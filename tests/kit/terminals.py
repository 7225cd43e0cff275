"""A real terminal, of the kernel's, on which a program runs: keys, sizes and what it shows."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

# The new session's first act is to take the terminal, so that Ctrl-C and a new size reach it.
_TAKE = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


class Terminal:
    """A program and its terminal. `shown` is all that came so far, escape sequences included."""

    def __init__(self, process: "subprocess.Popen[bytes]", ours: int) -> None:
        self.process = process
        self.shown = ""
        self._ours = ours
        self._read_up_to = 0

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size, of which the kernel tells the program."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        """Return the terminal's modes: whether it echoes, waits for lines, and so on."""
        return list(termios.tcgetattr(self._ours))

    def wait_for(self, *texts: str, seconds: float = 30) -> str:
        """Wait until all texts came after what was waited for last; return what came till then."""
        start, deadline = self._read_up_to, time.monotonic() + seconds
        while any(text not in self.shown[start:] for text in texts):
            assert self._read(deadline), f"{texts} not in {self.shown[start:][-3000:]!r}"
        ends = [self.shown.index(text, start) + len(text) for text in texts]
        self._read_up_to = max(ends)
        return self.shown[start : self._read_up_to]

    def ended(self, seconds: float = 30) -> int:
        """Read to the end and return the program's exit code."""
        deadline = time.monotonic() + seconds
        while self._read(deadline):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        """Take what comes next; False at the end, or when nothing comes in time."""
        while time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.05)[0]:
                try:
                    data = os.read(self._ours, 65_536)
                except OSError:
                    # Linux's word for: nobody has the other side open any more.
                    return False
                self.shown += data.decode(errors="replace")
                return bool(data)
            if self.process.poll() is not None:
                # Ours stays open on the other side, where its modes can still be asked for.
                return bool(select.select([self._ours], [], [], 0)[0])
        return False


@contextmanager
def on_terminal(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    rows: int = 24,
    columns: int = 80,
    stdout: int | None = None,
) -> Iterator[Terminal]:
    """Run a program on a terminal, with `stdout` elsewhere if given; kills it at the end."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        with subprocess.Popen(
            [sys.executable, "-c", _TAKE, *command],
            env={"TERM": "xterm-256color", **environment, "COLUMNS": "", "LINES": ""},
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            try:
                yield Terminal(process, ours)
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
    finally:
        os.close(ours)
        os.close(theirs)
