"""A directory that is made on macOS is left out of Time Machine, and nothing waits for that."""

import sys
import threading
import time
from pathlib import Path

import pytest

from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.root import Root


def _stand_in(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = path / "bin" / "tmutil"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setattr(sys, "platform", "darwin")


def _joined() -> None:
    for thread in threading.enumerate():
        if thread.name == "omlx-cache-tmutil":
            thread.join(10)
            assert not thread.is_alive()


def test_a_directory_that_is_made_is_left_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    _stand_in(tmp_path, f'echo "$@" >> {told}; exit 1', monkeypatch)
    caches = tmp_path / "Library" / "Caches"
    caches.mkdir(parents=True)
    (tmp_path / "there").mkdir()
    for name in ("made", "made", "there", "Library/Caches/omlx-cache"):
        Root(tmp_path / name, FileSystem()).have(deleted=False)
        _joined()
    assert told.read_text() == f"addexclusion {tmp_path / 'made'}\n"


@pytest.mark.parametrize("script", ["", "exec sleep 1"])
def test_a_tool_that_is_missing_or_slow_is_neither_an_error_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    _stand_in(tmp_path, script, monkeypatch)
    if not script:
        monkeypatch.setenv("PATH", str(tmp_path))
    began = time.monotonic()
    Root(tmp_path / "made", FileSystem()).have(deleted=False)
    assert time.monotonic() - began < 1
    assert (tmp_path / "made").is_dir()
    _joined()
