"""A store whose constructor fails leaves no thread, lock or socket behind."""

import threading
from pathlib import Path

import pytest

from kit import leaks
from kit.drive import settings
from omlx_cache import BlockStore


def test_a_store_without_a_thread_to_be_had_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses the first thread, or the second, and so on."""
    start = threading.Thread.start
    begun, share = 0, tmp_path / "share"
    share.mkdir()
    remote = {"remote": f"file://{share}", "remote_writes": "all", "remote_secret": "s" * 32}
    fields = {"socket": tmp_path / "s", **remote}
    failures = 0
    for most in range(16):
        begun = 0

        def refuse(thread: threading.Thread, most: int = most) -> None:
            nonlocal begun
            begun += 1
            if begun > most:
                raise RuntimeError("can't start new thread")
            start(thread)

        before = leaks.now()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        try:
            with BlockStore(settings(tmp_path / "cold", **fields)):
                monkeypatch.undo()
        except RuntimeError:
            failures += 1
        monkeypatch.undo()
        left = leaks.left_since(before)
        assert not left, f"left behind by a constructor that had {most} threads: {left}"
        if begun <= most:
            break
    assert failures
    assert begun <= most
