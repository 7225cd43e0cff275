"""The system's own calls hang, below Python: every call of the store returns, the process ends."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.examples import some
from kit.storage import fuse_server

SOURCE = Path(fuse_server.__file__).with_name("hanging.c")
CALLS = (
    *("access", "close", "flock", "fstat", "fsync", "ftruncate", "mkdir", "open", "opendir"),
    *("pread", "preadv", "pwrite", "read", "rename", "rmdir", "stat", "statvfs", "unlink"),
    *("utimensat", "write"),
)
COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "hanging.so"
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-w", "-o", str(path), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize("mode", some(["calls", "open"], "open"))
@pytest.mark.parametrize(
    "call", ["everything", *(pytest.param(each, marks=pytest.mark.nightly) for each in CALLS)]
)
def test_each_call_returns_and_the_process_ends(
    tmp_path: Path, library: Path, call: str, mode: str
) -> None:
    flag, cold = tmp_path / "flag", tmp_path / "hung-directory"
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.hung", str(cold), mode],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
            "LD_PRELOAD": str(library),
            "HANG_FLAG": str(flag),
            "HANG_IN": cold.name,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        flag.write_text(call)
        said, _ = process.communicate("\n", timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    assert said.endswith("close\nwhole\n")
    assert (call == "everything" and mode == "open") <= said.startswith("opening\n")
