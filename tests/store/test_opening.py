"""What opening a store does to its process: the level of our loggers, its socket, and nothing that
is left behind when it fails."""

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kit import leaks
from kit.drive import settings
from kit.storage import Story, commit, open_store
from omlx_cache import BlockStore
from omlx_cache.settings import ConfigError

_EMBED = """
import logging, sys
from omlx_cache import BlockStore, CacheSettings
given = {"log_level": sys.argv[1]} if sys.argv[1:] else {}
with BlockStore(CacheSettings(hot_cache_only=True, hot_bytes="1MiB", socket="off", **given)):
    names = ("omlx_cache", "omlx_cache_storage", "")
    levels = [logging.getLevelName(logging.getLogger(name).level) for name in names]
    print(*levels, len(logging.getLogger().handlers))
"""
VARIABLE = "OMLX_CACHE_RUNTIME_DIR"


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


@pytest.mark.parametrize(
    ("argument", "variable", "levels"),
    [
        ((), None, "NOTSET NOTSET WARNING 0"),
        (("error",), "debug", "ERROR ERROR WARNING 0"),
    ],
)
def test_a_level_that_was_given_is_that_of_our_loggers_alone(
    argument: tuple[str, ...], variable: str | None, levels: str
) -> None:
    given = {"OMLX_CACHE_LOG_LEVEL": variable} if variable else {}
    done = subprocess.run(
        [sys.executable, "-c", _EMBED, *argument],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{levels}\n"


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_one_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    before, descriptors = set(threading.enumerate()), len(os.listdir("/dev/fd"))
    with pytest.raises(ConfigError, match=f"^{VARIABLE}: got {value!r}; allowed: a directory$"):
        open_store(tmp_path / "cold", socket="auto")
    assert set(threading.enumerate()) == before
    assert len(os.listdir("/dev/fd")) == descriptors
    assert not (tmp_path / "cold").exists()


@pytest.mark.parametrize(
    "value",
    [
        "/nowhere/at/all",
        "/dev/null",
        "/dev/null/x",
        "/proc/self",
        "/" + "x" * 300,
        "/tmp/" + "x" * 90,
        "~nobody-here/x",
        "\udcff\udcfe/x",
        "/",
        "/etc",
    ],
    ids=ascii,
)
def test_one_that_cannot_be_used_costs_the_socket_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    value: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, value)
    with open_store(tmp_path / "cold", socket="auto") as store:
        assert commit(store, Story(), 1) == [True]
        assert store.flush()
    assert "no control socket: " in caplog.text
    assert caplog.text.encode(), "a log in UTF-8 takes it"


def test_the_control_socket_is_0600(tmp_path: Path) -> None:
    path, before = tmp_path / "store.sock", os.umask(0)
    try:
        with open_store(tmp_path / "cold", socket=path):
            assert stat.S_ISSOCK(path.lstat().st_mode)
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not path.exists()


def test_a_socket_that_cannot_be_had_does_not_stop_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store.sock"
    with open_store(tmp_path / "a", socket=path), open_store(tmp_path / "b", socket=path) as second:
        assert commit(second, Story(), 1) == [True]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
