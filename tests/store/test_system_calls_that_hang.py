"""The system's own calls hang, below Python: every call of the store returns, the process ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.examples import some
from kit.storage.hanging import HangingCalls, needs_compiler

pytestmark = needs_compiler
CALLS = (
    *("access", "close", "flock", "fstat", "fsync", "ftruncate", "mkdir", "open", "opendir"),
    *("pread", "preadv", "pwrite", "read", "rename", "rmdir", "stat", "statvfs", "unlink"),
    *("utimensat", "write"),
)


@pytest.mark.parametrize("mode", some(["calls", "open"], "open"))
@pytest.mark.parametrize(
    "call", ["everything", *(pytest.param(each, marks=pytest.mark.nightly) for each in CALLS)]
)
def test_each_call_returns_and_the_process_ends(tmp_path: Path, call: str, mode: str) -> None:
    cold = tmp_path / "hung-directory"
    calls = HangingCalls(tmp_path, cold.name)
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.hung", str(cold), mode],
        env={**os.environ, **calls.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        calls.hang(call)
        said, _ = process.communicate("\n", timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    assert said.endswith("close\nwhole\n")
    assert (call == "everything" and mode == "open") <= said.startswith("opening\n")
