"""A store that keeps nothing on a disk does not stand in the way of the one that does."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.embedded import embedded_stores

Cli = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[str]"]

_EMBED = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="1MiB", cold_bytes=2**24, min_free_bytes=0)) as store:
    commit(store, Story(sys.argv[1]), 1, 2)
    assert store.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def embed(environment: dict[str, str]) -> Iterator[Start]:
    """Starts a store with two pages, and waits until it listens."""
    with embedded_stores(_EMBED) as run:

        def begin(story: str, **variables: str) -> "subprocess.Popen[str]":
            return run({**environment, **variables}, story)

        yield begin


def test_the_only_store_with_a_directory_is_meant(embed: Start, cli: Cli) -> None:
    embed("kept")
    passing = embed("passing", OMLX_CACHE_HOT_CACHE_ONLY="1")
    for command in (
        ["ls", "--format", "json"],
        ["prune", "--older", "1d", "--dry-run"],
        ["rm", "kept", "--as", "model", "--dry-run"],
    ):
        ended = cli(*command)
        assert f"passed over, without a directory: --pid {passing.pid}\n" in ended.err
        assert "choose one" not in ended.err
        assert ended.code == (1 if command[0] == "rm" else 0), ended.err
    (row,) = json.loads(cli("ls", "--format", "json").out)
    assert row["pages"] == 2


@pytest.mark.nightly
def test_several_with_directories_of_their_own_are_asked_apart(
    embed: Start, cli: Cli, tmp_path: Path
) -> None:
    embed("one")
    embed("two", OMLX_CACHE_COLD_DIR=str(tmp_path / "other"))
    for command in (["ls"], ["inspect", "ab"], ["prune", "--older", "1d"], ["rm", "one"]):
        ended = cli(*command)
        assert ended.code == 2
        assert "2 stores are running; choose one" in ended.err
