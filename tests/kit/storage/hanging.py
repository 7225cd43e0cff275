"""Disks and system calls that hang until they are let go, and calls that return all the same."""

import inspect
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.storage.faults import enter_first
from omlx_cache_storage.cold.disk import FileSystem

SLACK_SECONDS = 12.0
"""What a loaded machine may take beyond a deadline: a call that hangs takes for ever."""

OPERATIONS = sorted(
    name
    for name, function in inspect.getmembers(FileSystem, inspect.isroutine)
    if not name.startswith("_")
)


class HangingDisk(FileSystem):
    """Operations named in `hangs` wait until `go`; `reached` is set when one does."""

    def __init__(self) -> None:
        self.hangs: frozenset[str] = frozenset()
        self.reached = threading.Event()
        self._gate = threading.Event()

    def hang(self, *names: str) -> None:
        self.hangs = frozenset(names)

    def go(self) -> None:
        """Let everything go on, for good."""
        self.hangs = frozenset()
        self._gate.set()

    def _enter(self, name: str, *_given: object) -> None:
        if name in self.hangs:
            self.reached.set()
            self._gate.wait()


enter_first(HangingDisk, OPERATIONS)


def in_time(call: Callable[[], Any], deadline: float) -> Any:
    """Return what a call on a thread of its own returns; fails when it has not returned long after
    its deadline."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(call()), daemon=True)
    thread.start()
    thread.join(deadline + SLACK_SECONDS)
    assert done, f"no answer after {deadline + SLACK_SECONDS:.0f} s: {call}"
    return done[0]


COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs Linux and a C compiler"
)


class HangingCalls:
    """In processes with `environment`, calls for paths that have `name` in them hang from `hang`
    on. `directory` has the library and a flag."""

    def __init__(self, directory: Path, name: str) -> None:
        library, source = directory / "hanging.so", Path(__file__).with_name("hanging.c")
        options = ["-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"]
        subprocess.run([COMPILER, *options], check=True)
        self._flag = directory / "flag"
        self.environment = {
            "LD_PRELOAD": str(library),
            "HANG_FLAG": str(self._flag),
            "HANG_IN": name,
        }

    def hang(self, call: str = "everything") -> None:
        self._flag.write_text(call)
