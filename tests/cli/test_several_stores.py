"""Deleting from a directory that several running stores share, one of them without a socket: what
goes is gone for all of them at once, and what any of them used a while ago stays."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.embedded import embedded_stores
from kit.examples import some
from kit.storage import Story, disk_usage, files_in
from omlx_cache_storage.cold.tier import ColdTier

Cli = Callable[..., Any]
Process = subprocess.Popen[str]
Start = Callable[..., Process]

PAGES = range(1, 7)

_EMBED = """
import os, sys, time
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
story = Story("shared")
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24)) as store:
    commit(store, story, *range(1, 7))
    assert store.flush()
    month = time.time_ns() - 31 * 86_400 * 10**9
    store.hot.demote(story.ids(*range(1, 7)), month)
    store.cold.demote(story.ids(*range(1, 7)), month)
    for entry in store.cold.entries():
        os.utime(entry.path, ns=(month, month))
    print("ready", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "use":
            store.touch(story.ids(*map(int, numbers)))
            print("used", flush=True)
        elif what == "write":
            commit(store, Story(numbers[0]), *map(int, numbers[1:]))
            assert store.flush()
            print("written", flush=True)
        elif what == "look":
            store.refresh()
            on_disk = [n for n in range(1, 7) if store.cold.info(story.id(n)) is not None]
            held = [n for n in range(1, 7) if store.hot.get(story.id(n)) is not None]
            print("disk", *on_disk, "memory", *held, flush=True)
        elif what == "forget":
            store.cold.discard(Story(numbers[0]).ids(*map(int, numbers[1:])))
            print("forgotten", flush=True)
        elif what == "holds":
            other = Story(numbers[0])
            numbers = [n for n in map(int, numbers[1:]) if store.hot.get(other.id(n)) is not None]
            print("memory", *numbers, flush=True)
        elif what == "books":
            store.cold.settle()
            store.cold.check_integrity()
            usage = store.stats().cold
            print(usage.nbytes, usage.corrupt_pages, usage.state, flush=True)
"""


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Starts stores that have used the six pages of a namespace a month ago."""
    with embedded_stores(_EMBED) as run:

        def begin(**variables: str) -> Process:
            return run({**environment, **variables})

        yield begin


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    return tmp_path / "cold"


def tell(process: Process, line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def left(directory: Path, name: str = "shared") -> set[int]:
    """The pages of a namespace that have a file."""
    story = Story(name)
    names = {path.name[:64] for path in files_in(directory / story.namespace.hex())}
    return {n for n in PAGES if story.id(n).key.hex() in names}


def test_rm_deletes_what_any_of_them_wrote_from_the_memory_of_all(
    cli: Cli, start: Start, cold_dir: Path
) -> None:
    first, second = start(), start()
    assert tell(first, "write other 1 2") == "written"
    assert tell(second, "write other 3 4 5") == "written"
    result = cli("rm", Story("other").namespace.hex(), "--yes", "--cold-dir", str(cold_dir))
    assert (result.code, result.out[:15], result.err) == (0, "deleted 5 pages", "")
    assert left(cold_dir, "other") == set()
    result = cli("rm", Story("shared").namespace.hex(), "--yes", "--cold-dir", str(cold_dir))
    assert (result.code, left(cold_dir)) == (0, set())
    for process in (first, second):
        assert tell(process, "look") == "disk memory"


def test_what_one_has_used_since_is_not_old_whoever_is_asked_first(
    cli: Cli, start: Start, cold_dir: Path
) -> None:
    processes = [start(), start()]
    for number, process in enumerate(sorted(processes, key=lambda p: p.pid), 1):
        assert tell(process, f"use {number}") == "used"
    arguments = ("prune", "--older", "30d", "--cold-dir", str(cold_dir), "--format", "json")
    assert json.loads(cli(*arguments, "--dry-run").out)["pages"] == 4
    result = cli(*arguments, "--yes")
    assert result.code == 0, result.err
    assert json.loads(result.out)["deleted_pages"] == 4
    assert left(cold_dir) == {1, 2}
    for process in processes:
        assert tell(process, "look").startswith("disk 1 2 memory")


@pytest.mark.nightly
def test_prune_to_a_size_keeps_what_any_of_them_used_last(
    cli: Cli, start: Start, cold_dir: Path
) -> None:
    first, second = sorted((start(), start()), key=lambda p: p.pid)
    assert tell(first, "write first 1 2 3 4 5 6") == "written"
    assert tell(second, "write second 1 2 3 4 5 6") == "written"
    assert tell(second, "use 1 2 3 4 5 6") == "used"
    tell(first, "look")
    before = disk_usage(cold_dir)
    size = before - 6 * 4096
    arguments = ("--yes", "--cold-dir", str(cold_dir))
    assert cli("prune", "--to", str(size), *arguments).code == 0
    assert disk_usage(cold_dir) <= size
    assert left(cold_dir) == set(PAGES)
    assert left(cold_dir, "second") == set(PAGES)
    assert len(left(cold_dir, "first")) < 6
    assert "nothing to delete" in cli("prune", "--to", str(size), *arguments).out


@pytest.mark.parametrize(
    "command",
    some([["rm", Story("shared").namespace.hex()], ["prune", "--to", "0"]], ["prune", "--to", "0"]),
)
def test_a_store_without_a_socket_knows_at_once_what_was_deleted_beside_it(
    cli: Cli, start: Start, cold_dir: Path, command: list[str]
) -> None:
    hidden = start(OMLX_CACHE_SOCKET="off")
    result = cli(*command, "--yes", "--format", "json")
    assert json.loads(result.out)["deleted_pages"] == 6
    assert left(cold_dir) == set()
    assert tell(hidden, "look").startswith("disk memory")
    nbytes, corrupt, state = tell(hidden, "books").split()
    assert (corrupt, state) == ("0", "ok")
    assert int(nbytes) >= disk_usage(cold_dir)
    with contextlib.closing(ColdTier(cold_dir, 2**24)) as tier:
        tier.open()
        assert tier.usage().nbytes == int(nbytes)


@pytest.mark.nightly
def test_more_is_deleted_beside_a_store_than_its_ledger_can_tell_of(
    cli: Cli, start: Start, cold_dir: Path
) -> None:
    with contextlib.closing(ColdTier(cold_dir, 2**24)) as tier:
        tier.open()
        for page in Story("many", blocks=400).pages(*range(1, 400)):
            assert tier.write(page, time.time_ns(), {}) == "written"
    hidden = start(OMLX_CACHE_SOCKET="off")
    assert cli("rm", Story("many").namespace.hex(), "--yes").code == 0
    nbytes, corrupt, state = tell(hidden, "books").split()
    assert (corrupt, state, left(cold_dir)) == ("0", "ok", set(PAGES))
    assert int(nbytes) < tier.usage().nbytes


@pytest.mark.nightly
def test_stores_of_one_directory_need_not_be_told_apart(
    cli: Cli, start: Start, cold_dir: Path
) -> None:
    first, second = start(), start()
    assert tell(second, "write other 1 2") == "written"
    for arguments in (["ls"], ["prune", "--older", "30d", "--dry-run"]):
        result = cli(*arguments)
        assert (result.code, result.err) == (0, "")
    assert {row["pages"] for row in json.loads(cli("ls", "--format", "json").out)} == {2, 6}
    key = Story("other").id(1).key.hex()
    assert cli("inspect", key).code == 0
    assert cli("rm", Story("shared").namespace.hex(), "--yes").code == 0
    assert left(cold_dir) == set()
    for process in (first, second):
        assert tell(process, "look") == "disk memory"


@pytest.mark.nightly
def test_rm_finds_what_only_the_memory_of_the_second_store_has(
    cli: Cli, start: Start, cold_dir: Path
) -> None:
    first, second = sorted((start(), start()), key=lambda p: p.pid)
    assert tell(second, "write other 1 2") == "written"
    for page in files_in(cold_dir / Story("other").namespace.hex()):
        page.unlink()
    tell(first, "look")
    assert tell(first, "forget other 1 2") == "forgotten"
    result = cli("rm", Story("other").namespace.hex(), "--yes")
    assert result.code == 0, result.err
    assert tell(second, "holds other 1 2") == "memory"
