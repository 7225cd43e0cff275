"""A real mount whose server stops answering: every call returns, and the process ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from kit.storage.stopped_mount import Mount, needs_mounts

pytestmark = needs_mounts
_ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
}


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    for name in ("mount", "backing"):
        (tmp_path / name).mkdir()
    mount = Mount(tmp_path / "mount", tmp_path / "backing")
    yield mount
    mount.end()


def _ready(stdout: IO[str] | None) -> None:
    assert stdout is not None
    assert stdout.readline() == "ready\n"


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["calls", "open"])
def test_each_call_returns_and_the_process_ends(mount: Mount, mode: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kit.hung", str(mount.place / "cold"), mode],
        env=_ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _ready(process.stdout)
        mount.stop()
        said, _ = process.communicate("\n", timeout=120)
    finally:
        process.kill()
        mount.end()
        process.communicate()
    assert process.returncode == 0, said
    assert said.endswith("close\nwhole\n")
    assert (mode == "calls") != said.startswith("opening\n")
