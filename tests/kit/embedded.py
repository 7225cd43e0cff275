"""Stores in processes of their own, which say when they listen and end with their input."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Process = subprocess.Popen[str]


@contextmanager
def embedded_stores(script: str) -> Iterator[Callable[..., Process]]:
    """Gives what starts a script in an environment, with arguments, and waits for its `ready`; ends
    all that were started."""
    started: list[Process] = []

    def start(environment: Mapping[str, str], *arguments: str) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    try:
        yield start
    finally:
        for process in started:
            process.communicate(timeout=60)
