"""`ls` and `inspect` say the same, field for field, from a running store and from its files."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.storage import Story

Cli = Callable[..., Any]

_EMBED = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.identity.namespace import Namespace
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24, hot_bytes=0)) as store:
    for name in sys.argv[1:]:
        story = Story(name)
        store.register(Namespace(story.namespace, {"model_id": name, "model": "f" * 64}))
        commit(store, story, *range(1, 14))
    assert store.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


def _start(environment: dict[str, str], *names: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _EMBED, *names],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _without_ages(rows: Any) -> Any:
    """Return rows as they are but for the time that has passed between two answers."""
    return [
        [(name, type(value) if name == "age_s" else value) for name, value in row.items()]
        for row in rows
    ]


@pytest.mark.parametrize(
    "arguments",
    some(
        [
            ["ls"],
            ["ls", "--limit", "1"],
            ["ls", Story("one").namespace.hex()[:9]],
            ["ls", Story("one").namespace.hex(), "--limit", "5"],
            ["inspect", Story("one").id(3).key.hex()[:12]],
            ["inspect", "0", "--limit", "3"],
        ],
        ["ls"],
    ),
    ids=lambda arguments: " ".join(arguments)[:20],
)
def test_json_is_the_same_with_and_without_a_running_store(
    cli: Cli, environment: dict[str, str], arguments: list[str]
) -> None:
    _start(environment, "one", "two", "three").communicate(timeout=60)
    # A second process knows the documents of the first from their files only.
    process = _start(environment)
    try:
        asked = cli(*arguments, "--format", "json")
        read = cli(
            *arguments,
            "--cold-dir",
            environment["OMLX_CACHE_COLD_DIR"],
            "--format",
            "json",
        )
    finally:
        process.communicate(timeout=60)
    assert (asked.code, read.code) == (0, 0)
    assert asked.err == read.err
    rows = json.loads(asked.out)
    assert rows
    assert _without_ages(rows) == _without_ages(json.loads(read.out))


def test_a_directory_of_a_running_process_is_listed_like_its_store(
    cli: Cli, environment: dict[str, str], tmp_path: Path
) -> None:
    process = _start(environment, "one", "two")
    try:
        asked = json.loads(cli("ls", "--format", "json").out)
        read = json.loads(cli("ls", "--cold-dir", str(tmp_path / "cold"), "--format", "json").out)
    finally:
        process.communicate(timeout=60)
    assert [row["label"] for row in asked] == [row["label"] for row in read]
    assert asked == read
