"""`config` shows what the running store has, and where this shell would make something else."""

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.embedded import embedded_stores
from omlx_cache.settings.names import SETTING_NAMES

Cli = Callable[..., Any]
_EMBED = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="64MiB", min_free_bytes=0), name="embedded"):
    print("ready", flush=True)
    sys.stdin.read()
"""
SECRET = "sk-do-not-show-this"


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    with embedded_stores(_EMBED) as run:

        def begin() -> "subprocess.Popen[str]":
            variables = {"OMLX_CACHE_BLOCK_SIZE": "64", "OPENAI_API_KEY": SECRET}
            return run({**environment, **variables})

        yield begin


Start = Callable[[], "subprocess.Popen[str]"]


def rows(out: str) -> dict[str, list[str]]:
    """The lines of a table by their first word."""
    return {line.split()[0]: line.split() for line in out.splitlines() if line}


def test_the_one_running_store_is_asked_and_differences_are_marked(cli: Cli, start: Start) -> None:
    store = start()
    result = cli("config", OMLX_CACHE_CODEC="affine8")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Settings of embedded, process {store.pid}; HERE is what one ")
    shown = rows(result.out)
    assert shown["SETTING"] == ["SETTING", "VALUE", "ORIGIN", "HERE"]
    theirs = ["block_size", "64", "environment", "OMLX_CACHE_BLOCK_SIZE", "256", "(default)"]
    assert shown["block_size"] == theirs
    assert shown["hot_bytes"][:5] == ["hot_bytes", "64", "MiB", "argument", shown["hot_bytes"][4]]
    assert shown["codec"] == [
        *("codec", "dense", "default", "affine8", "(environment", "OMLX_CACHE_CODEC)")
    ]
    assert shown["durability"] == ["durability", "fsync", "default"]
    assert shown["cold_bytes"][-3:] == ["most", "128", "GiB)"]
    assert " ".join(shown["cold_bytes"]).count("derived") == 1, "no difference is marked"


@pytest.mark.nightly
def test_as_json_the_process_and_both_values_are_named(cli: Cli, start: Start) -> None:
    store = start()
    document = json.loads(cli("config", "--format", "json").out)
    assert document["process"]["pid"] == store.pid
    assert document["settings"]["block_size"]["value"] == 64
    assert document["settings"]["hot_bytes"]["origin"] == "argument"
    assert document["here"]["block_size"]["value"] == 256
    assert "durability" not in document["here"]


@pytest.mark.nightly
def test_this_shell_s_settings_can_be_asked_for_while_a_store_runs(cli: Cli, start: Start) -> None:
    start()
    document = json.loads(cli("config", "--here", "--format", "json").out)
    assert document["process"] is None
    assert document["settings"]["block_size"]["value"] == 256
    assert cli("config", "--here").out.startswith("Settings of a store that is started here\n")


@pytest.mark.nightly
def test_of_several_stores_one_is_chosen(cli: Cli, start: Start) -> None:
    stores = [start(), start()]
    both = cli("config", "--format", "json")
    assert json.loads(both.out)["process"] is None
    assert "2 stores are running (processes " in both.err
    one = json.loads(cli("config", "--pid", str(stores[1].pid), "--format", "json").out)
    assert one["process"]["pid"] == stores[1].pid
    assert cli("config", "--pid", "1").code == 69


def test_nothing_but_settings_is_told(cli: Cli, start: Start) -> None:
    start()
    for format in ("json", "text"):
        assert SECRET not in cli("config", "--format", format).out
    document = json.loads(cli("config", "--format", "json").out)
    assert set(document["settings"]) == set(SETTING_NAMES)


@pytest.mark.nightly
def test_a_shell_that_cannot_start_a_store_still_asks_one(cli: Cli, start: Start) -> None:
    start()
    result = cli("config", OMLX_CACHE_BLOCK_SIZE="7")
    assert result.code == 0
    assert "Note: a store cannot be started here: OMLX_CACHE_BLOCK_SIZE: got '7'" in result.out
    assert cli("config", "--here", OMLX_CACHE_BLOCK_SIZE="7").code == 78


def test_a_store_of_another_version_says_so(cli: Cli, start_store: Callable[..., Any]) -> None:
    store = start_store()
    result = cli("config")
    assert (result.code, result.out) == (1, "")
    assert f"the store in process {store.pid} is of a version that does not tell" in result.err


def test_removed_settings_are_noted_and_their_flags_are_accepted(
    cli_in_process: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_MEMORY_ONCE", "yes")
    result = cli_in_process("config", "--here")
    assert result.code == 0
    assert "OMLX_CACHE_MEMORY_ONCE has no effect any more: hot_bytes=0 " in result.out
    ended = cli_in_process("warm", "missing", "--eviction-policy", "lru", "--memory-once")
    assert (ended.code, "there is no file missing" in ended.err) == (1, True)
