"""No value of OMLX_CACHE_RUNTIME_DIR leaves a thread behind or surprises whoever opens a store."""

import os
import threading
from pathlib import Path

import pytest

from kit.storage import Story, commit, open_store
from omlx_cache.settings import ConfigError

VARIABLE = "OMLX_CACHE_RUNTIME_DIR"


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


def test_an_empty_one_does_not_matter_without_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    with open_store(tmp_path, socket="off") as store:
        assert commit(store, Story(), 1) == [True]


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


def test_a_relative_one_in_a_directory_that_is_gone_costs_the_socket_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv(VARIABLE, "run")
    (tmp_path / "gone").rmdir()
    with open_store(tmp_path / "cold", socket="auto") as store:
        assert commit(store, Story(), 1) == [True]
