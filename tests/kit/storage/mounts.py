"""Real small disks: file systems in memory, with as many bytes and files as a test says."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted tmpfs at `path`."""

    def __init__(self, path: Path, options: str) -> None:
        self.path = path
        command = ["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(path)]
        try:
            mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("mounting a small disk needs Linux and the program mount")
        if mounted.returncode:
            pytest.skip(f"mounting a small disk needs root or CAP_SYS_ADMIN: {mounted.stderr}")

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[SmallDisk]:
    """Mount a tmpfs at a path for the time of a test, which is skipped where that is refused."""
    path.mkdir()
    disk = SmallDisk(path, options)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
