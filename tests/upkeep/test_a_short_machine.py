"""Real processes on a machine that runs short of memory: the hot tier shrinks, and so do they."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.units import MIB

CHILD = Path(__file__).with_name("hungry.py")
LIMIT_MIB = 304
GROUPS = Path("/sys/fs/cgroup")

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs a control group")


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of this process's own with room for less than a child and its hot tier."""
    try:
        group = _make_group(f"omlx-cache-test-{os.getpid()}")
    except OSError as error:
        pytest.skip(
            f"no memory group can be made here ({error}): run as root with cgroups writable"
        )
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def _make_group(name: str) -> Path:
    """Make a group below this process's own, of version 1 or 2; raises OSError."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    for number, controllers, group in (line.split(":", 2) for line in lines):
        first = "memory" in controllers.split(",")
        if not first and not (number == "0" and (GROUPS / "cgroup.controllers").exists()):
            continue
        base = (GROUPS / "memory" if first else GROUPS) / group.lstrip("/")
        path = base / name
        path.mkdir()
        try:
            limit = "memory.limit_in_bytes" if first else "memory.max"
            (path / limit).write_text(str(LIMIT_MIB * MIB))
        except OSError:
            path.rmdir()
            raise
        return path
    raise OSError("no group with a memory controller")


@linux
def test_a_process_in_a_small_group_is_not_killed_for_its_hot_tier(small_group: Path) -> None:
    child = subprocess.run(
        [sys.executable, str(CHILD), str(small_group / "cgroup.procs")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, f"ended with {child.returncode} after {child.stdout!r}"
    given, times = child.stdout.split()
    assert int(given) >= 64
    assert int(times) >= 1
