"""`config` shows what the running store has, and where this shell would make something else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.settings.names import SETTING_NAMES
from omlx_cache_storage.cold.small_files import Budget, write_budget

from .conftest import Cli, Start

EMBED = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="64MiB", min_free_bytes=0), name="embedded"):
    print("ready", flush=True)
    sys.stdin.read()
"""
SECRET = "sk-do-not-show-this"


@pytest.fixture
def start(start: Start) -> Start:
    return lambda: start(OMLX_CACHE_BLOCK_SIZE="64", OPENAI_API_KEY=SECRET)


def rows(out: str) -> dict[str, list[str]]:
    """The lines of a table by their first word."""
    return {line.split()[0]: line.split() for line in out.splitlines() if line}


def test_the_one_running_store_is_asked_and_differences_are_marked(cli: Cli, start: Start) -> None:
    store = start()
    result = cli("config", OMLX_CACHE_CODEC="affine8")
    assert result.out.startswith(f"Settings of embedded, process {store.pid}; HERE is what one ")
    shown = rows(result.out)
    assert shown["SETTING"] == ["SETTING", "VALUE", "HERE", "ORIGIN"]
    assert [*shown["codec"][1:3], shown["codec"][-1]] == ["dense", "affine8", "default"]
    assert shown["durability"] == ["durability", "fsync", "default"]
    assert " ".join(shown["cold_bytes"]).count("derived") == 1, "no difference is marked"
    said = cli("config", "--format", "json").out
    document = json.loads(said)
    assert SECRET not in said + result.out
    settings, here = document["settings"], document["here"]
    assert (document["process"]["pid"], set(settings)) == (store.pid, set(SETTING_NAMES))
    assert [one["block_size"]["value"] for one in (settings, here)] == [64, 256]
    assert "durability" not in here


def test_this_shell_is_asked_without_a_store_or_with_here(
    cli: Cli, start: Start, runtime_dir: Path
) -> None:
    variables = {"OMLX_CACHE_BLOCK_SIZE": "32", "OMLX_CACHE_HOT_BYTES": "1GiB"}
    nobody = json.loads(cli("config", "--format", "json", **variables).out)
    assert (nobody["process"], nobody["runtime_dirs"]) == (None, [str(runtime_dir)])
    hot, queue = (nobody["settings"][name] for name in ("hot_bytes", "queue_bytes"))
    assert (hot["value"], queue["kind"]) == (2**30, "derived")
    start()
    shown = rows(cli("config", "--here", **variables).out)
    assert shown["block_size"] == ["block_size", "32", "environment", "OMLX_CACHE_BLOCK_SIZE"]
    # A shell that cannot start a store still asks one.
    asked = cli("config", OMLX_CACHE_BLOCK_SIZE="7")
    assert "Note: a store cannot be started here: OMLX_CACHE_BLOCK_SIZE: got '7'" in asked.out


@pytest.mark.nightly
def test_of_several_stores_one_is_chosen(cli: Cli, start: Start) -> None:
    stores = [start(), start()]
    both = cli("config", "--format", "json")
    assert json.loads(both.out)["process"] is None
    assert "2 stores are running (processes " in both.err
    one = json.loads(cli("config", "--pid", str(stores[1].pid), "--format", "json").out)
    assert one["process"]["pid"] == stores[1].pid
    assert cli("config", "--pid", "1").code == 69


def test_a_store_of_another_version_says_so(cli: Cli, start_store: Callable[..., Any]) -> None:
    store = start_store()
    cli("config").assert_refused(
        1, f"the store in process {store.pid} is of a version that does not tell"
    )


def test_the_budget_of_the_directory_counts_before_the_free_space(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "budgeted"
    place.mkdir(mode=0o700)
    for set_by, origin in (("store", "a store's cold_bytes"), ("quota", "`omlx-cache quota`")):
        write_budget(place, Budget(5 << 20, set_by))
        shown = json.loads(cli("config", "--format", "json", OMLX_CACHE_COLD_DIR=str(place)).out)
        setting = shown["settings"]["cold_bytes"]
        assert (setting["value"], setting["kind"]) == (5 << 20, "derived")
        assert setting["origin"] == f"the directory's budget, set by {origin}"
    given = {"OMLX_CACHE_COLD_DIR": str(place), "OMLX_CACHE_COLD_BYTES": "1GiB"}
    shown = json.loads(cli("config", "--format", "json", **given).out)
    assert shown["settings"]["cold_bytes"]["value"] == 1 << 30


def test_notes_say_what_is_ignored_or_cannot_be_used(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for variables, note in (
        ({"OMLX_CACHE_MEMORY_ONCE": "yes"}, "OMLX_CACHE_MEMORY_ONCE has no effect any more"),
        ({"OMLX_CACHE_HOT_CACHE_ONLY": "1"}, "OMLX_CACHE_COLD_DIR is ignored"),
        (
            {"OMLX_CACHE_COLD_DIR": str(tmp_path / "file" / "below")},
            f"cold_dir: {tmp_path / 'file'} is not a directory",
        ),
    ):
        assert f"Note: {note}" in cli("config", **variables).out
    # A removed setting's flag is accepted as well.
    ended = cli("warm", "missing", "--eviction-policy", "lru", "--memory-once")
    assert (ended.code, "missing: No such file" in ended.err) == (1, True)
