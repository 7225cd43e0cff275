"""Programs in processes of their own, that import what the tests can: killed, or ended with their
input."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kit.forks import CAN_FORK, Forked, fork_to_talk


@contextmanager
def program(code: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program that ends when its input does, or by `kill_9`."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        yield child


def said(child: subprocess.Popen[str]) -> str:
    """Return the next line that a program printed; waits for it."""
    return child.stdout.readline()


def told(child: subprocess.Popen[str], line: str = "") -> str:
    """Give a program a line; return the next one that it prints."""
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    return said(child).strip()


def ended(child: subprocess.Popen[str], *signals: int) -> tuple[int, str]:
    """Send signals to a program; return its exit code and what it said on standard error."""
    for number in signals:
        child.send_signal(number)
    _, errors = child.communicate(timeout=30)
    return child.returncode, errors


def kill_9(child: subprocess.Popen[str]) -> None:
    """End a program at once, and wait until it is gone."""
    child.send_signal(signal.SIGKILL)
    child.wait()


Process = subprocess.Popen[str] | Forked


@contextmanager
def embedded_stores(script: str) -> Iterator[Callable[..., Process]]:
    """Gives what starts a script in an environment, with arguments, forked where that is possible,
    and waits for its `ready`; ends all that were started."""
    started: list[Process] = []

    def start(environment: Mapping[str, str], *arguments: str) -> Process:
        command = ["-c", script, *arguments]
        process = (
            fork_to_talk(command, dict(environment))
            if CAN_FORK
            else subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    try:
        yield start
    finally:
        for process in started:
            process.communicate(timeout=60)
