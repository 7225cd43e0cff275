"""A mount that a test makes hang, where one can be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import fuse_server

needs_mounts = pytest.mark.skipif(
    not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0,
    reason="only root mounts, where there is /dev/fuse",
)


class Mount:
    """A mounted directory, `stop` of whose server makes it hang."""

    def __init__(self, place: Path, backing: Path) -> None:
        self.place = place
        command = [sys.executable, fuse_server.__file__, str(place), str(backing)]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self._server.stdout is not None
        if self._server.stdout.readline() != "ready\n":
            self.end()
            pytest.skip("no file system can be mounted here")

    def stop(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write("stop\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == "stopped\n"

    def end(self) -> None:
        """Kill the server, which ends every call that hangs, and unmount."""
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.stdout.close()
        subprocess.run(["umount", "-l", str(self.place)], check=False, capture_output=True)
