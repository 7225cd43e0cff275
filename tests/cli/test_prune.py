"""`omlx-cache prune`: by versions, last use and size; in a directory and in running stores."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.embedded import embedded_stores
from kit.examples import some
from kit.storage import Story, disk_usage, files_in, open_cold
from omlx_cache.identity.parts import installed, software
from omlx_cache_storage.cold.tier import ColdTier

Cli = Callable[..., Any]

DAY = 86_400 * 10**9
OTHER = {"mlx": "0.1.2", "mlx-lm": "0.3.4"}

_EMBED = """
import os, sys, time
from importlib import metadata
real = metadata.version
if sys.argv[1] != "-":
    metadata.version = lambda name: sys.argv[1] if name == "mlx" else real(name)
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.identity.namespace import Namespace
from omlx_cache.identity.parts import software
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24)) as store:
    for name, software_of in (("mine", software()), ("foreign", {"mlx": "9", "mlx-lm": "9"})):
        story = Story(name)
        store.register(Namespace(story.namespace, {"format": 1, "software": software_of}))
        commit(store, story, 1, 2, 3)
    assert store.flush()
    month = time.time_ns() - 31 * 86_400 * 10**9
    old = Story("mine").ids(2, 3)
    store.hot.demote(old, month)
    store.cold.demote(old, month)
    for entry in store.cold.entries():
        if entry.page in old:
            os.utime(entry.path, ns=(month, month))
    print("ready", flush=True)
    sys.stdin.readline()
    for name in ("mine", "foreign"):
        story = Story(name)
        held = [n for n in (1, 2, 3) if store.hot.get(story.id(n)) is not None]
        print(name, *held, flush=True)
    store.hot.check_integrity()
    store.cold.check_integrity()
    print("sound", flush=True)
    sys.stdin.read()
"""


def _write(tier: ColdTier, name: str, numbers: range, age_days: float, **document: object) -> None:
    stamp = time.time_ns() - int(age_days * DAY)
    for page in Story(name).pages(*numbers):
        assert tier.write(page, stamp, document) == "written"


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Namespaces of these versions, of others, of another format, and one without versions."""
    tier = open_cold(tmp_path / "cold")
    _write(tier, "now", range(1, 6), 1, format=1, software=software())
    _write(tier, "unused", range(1, 4), 40, format=1, software=software())
    _write(tier, "other", range(1, 3), 1, format=1, software=OTHER)
    _write(tier, "format", range(1, 2), 1, format=77, software=software())
    _write(tier, "unknown", range(1, 2), 1, model="x")
    return tmp_path / "cold"


@pytest.fixture
def embed(environment: dict[str, str]) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a store with three pages in each of two namespaces; two pages are a month old."""
    with embedded_stores(_EMBED) as run:

        def start(mlx: str = "-", **variables: str) -> "subprocess.Popen[str]":
            return run({**environment, **variables}, mlx)

        yield start


def _held(process: "subprocess.Popen[str]") -> list[str]:
    """Return which pages of either namespace memory has, and that the books are right."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("look\n")
    process.stdin.flush()
    return [process.stdout.readline().strip() for _ in range(3)]


def _left(directory: Path, name: str) -> int:
    return len(files_in(directory / Story(name).namespace.hex()))


def _counts(directory: Path) -> dict[str, int]:
    return {
        name: _left(directory, name) for name in ("now", "unused", "other", "format", "unknown")
    }


def test_stale_deletes_namespaces_of_other_versions_and_keeps_unknown_ones(
    cli: Cli, cold_dir: Path
) -> None:
    result = cli("prune", "--stale", "--yes", "--format", "json")
    assert result.code == 0, result.err
    assert _counts(cold_dir) == {"now": 5, "unused": 3, "other": 0, "format": 0, "unknown": 1}
    assert not (cold_dir / Story("other").namespace.hex()).exists()
    report = json.loads(result.out)
    stale = sorted(Story(name).namespace.hex() for name in ("other", "format"))
    assert report["stale"]["namespaces"] == stale
    assert (report["pages"], report["deleted_pages"]) == (3, 3)
    assert report["directory"] == str(cold_dir)


def test_older_deletes_pages_by_their_last_use_and_the_superseded_ones(
    cli: Cli, cold_dir: Path
) -> None:
    tier = open_cold(cold_dir)
    tier.touch(Story("unused").ids(1), time.time_ns())
    tier.demote(Story("now").ids(5))
    tier.settle()
    result = cli("prune", "--older", "30d", "--yes")
    assert (result.code, result.out[:15]) == (0, "deleted 3 pages")
    assert _counts(cold_dir) == {"now": 4, "unused": 1, "other": 2, "format": 1, "unknown": 1}
    assert cli("prune", "--older", "12h", "--yes").code == 0
    assert _counts(cold_dir) == {"now": 0, "unused": 1, "other": 0, "format": 0, "unknown": 0}


def test_a_root_that_a_killed_process_left_old_outlives_its_deep_end(
    cli: Cli, cold_dir: Path
) -> None:
    root = next(p for p in files_in(cold_dir) if Story("now").id(1).key.hex() in p.name)
    os.utime(root, (0, time.time() - 90 * 86_400))
    assert cli("prune", "--older", "30d", "--yes").code == 0
    assert root.exists()
    assert _left(cold_dir, "now") == 5


def test_to_deletes_the_oldest_and_deepest_until_the_directory_is_that_small(
    cli: Cli, tmp_path: Path
) -> None:
    cold_dir = tmp_path / "cold"
    with contextlib.closing(ColdTier(cold_dir, 2**24)) as tier:
        tier.open()
        for name, age in (("first", 3), ("second", 2), ("third", 1)):
            for page in Story(name, nbytes=64 * 1024).pages(*range(1, 11)):
                tier.write(page, time.time_ns() - age * DAY, {})
    before = disk_usage(cold_dir)
    limit = before // 2
    result = cli("prune", "--to", f"{limit}", "--yes", "--format", "json")
    assert result.code == 0, result.err
    after = disk_usage(cold_dir)
    assert limit - 2 * 96 * 1024 < after <= limit
    assert (_left(cold_dir, "first"), _left(cold_dir, "third")) == (0, 10)
    kept = _left(cold_dir, "second")
    assert 0 < kept < 10
    names = {path.name[:64] for path in files_in(cold_dir / Story("second").namespace.hex())}
    assert names == {Story("second").id(n).key.hex() for n in range(1, kept + 1)}
    again = cli("prune", "--to", f"{limit}", "--yes")
    assert (again.code, again.out) == (0, f"nothing to delete in {cold_dir}\n")


@pytest.mark.nightly
def test_options_combine_and_a_page_counts_for_one_reason(cli: Cli, cold_dir: Path) -> None:
    size = str(2**30)
    arguments = ("prune", "--stale", "--older", "30d", "--to", size, "--format", "json")
    report = json.loads(cli(*arguments, "--dry-run").out)
    parts = [report[name]["pages"] for name in ("stale", "older", "surplus")]
    assert (parts, report["pages"], report["deleted_pages"]) == ([3, 3, 0], 6, 0)
    assert len(files_in(cold_dir)) == 12
    shown = cli("prune", "--stale", "--older", "30d", "--to", "0", "--dry-run").out
    lines = shown.splitlines()
    assert lines[0].startswith("would delete 12 pages (")
    assert lines[0].endswith(f" from {cold_dir}")
    assert "of other versions, in 2 namespaces" in lines[1]
    assert "not used for 30 d, or superseded, in 1 namespace" in lines[2]
    assert "beyond 0 B, in 2 namespaces" in lines[3]


def test_without_a_terminal_it_is_refused_and_deletes_nothing(cli: Cli, cold_dir: Path) -> None:
    result = cli("prune", "--older", "1s")
    assert (result.code, result.out) == (2, "")
    assert "give --yes" in result.err
    assert len(files_in(cold_dir)) == 12


@pytest.mark.parametrize(
    ("answer", "left"), some([("y\n", 9), ("n\n", 12), ("\x04", 12)], ("n\n", 12))
)
def test_on_a_terminal_it_asks_first(
    on_a_terminal: Callable[..., tuple[int, str]], cold_dir: Path, answer: str, left: int
) -> None:
    code, out = on_a_terminal(answer, "prune", "--older", "30d")
    assert "Delete 3 pages (" in out
    assert len(files_in(cold_dir)) == left
    assert code == (0 if left == 9 else 1)
    assert ("nothing was deleted" in out) == (left == 12)


def test_nothing_is_asked_when_nothing_would_go(
    on_a_terminal: Callable[..., tuple[int, str]], cold_dir: Path
) -> None:
    code, out = on_a_terminal("", "prune", "--older", "300d")
    assert (code, "Delete" in out, "nothing to delete in" in out) == (0, False, True)


@pytest.mark.parametrize(
    "arguments",
    [(), ("--older", "30"), ("--older", "soon"), ("--to", "20G"), ("--to", "-1")],
    ids=" ".join,
)
def test_what_does_not_say_what_to_delete_is_a_usage_error(
    cli: Cli, cold_dir: Path, arguments: tuple[str, ...]
) -> None:
    result = cli("prune", *arguments, "--yes")
    assert result.code == 2
    assert len(files_in(cold_dir)) == 12


@pytest.mark.nightly
def test_a_running_store_forgets_old_pages_in_memory_and_its_books_stay_right(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path
) -> None:
    process = embed()
    result = cli("prune", "--older", "30d", "--yes", "--format", "json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["deleted_pages"] == 2
    assert (_left(tmp_path / "cold", "mine"), _left(tmp_path / "cold", "foreign")) == (1, 3)
    assert _held(process) == ["mine 1", "foreign 1 2 3", "sound"]


def test_a_running_store_keeps_in_memory_what_its_disk_had_too_much_of(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path
) -> None:
    process = embed()
    result = cli("prune", "--to", "0", "--yes")
    assert result.code == 0, result.err
    assert files_in(tmp_path / "cold") == []
    assert _held(process) == ["mine 1 2 3", "foreign 1 2 3", "sound"]


def test_what_a_running_store_of_other_versions_uses_is_not_stale(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path
) -> None:
    process = embed("0.0.7")
    marked = {row["namespace"]: row for row in json.loads(cli("ls", "--format", "json").out)}
    assert marked[Story("mine").namespace.hex()]["versions"]["mlx"] == "0.0.7"
    assert marked[Story("mine").namespace.hex()]["stale"] is False
    assert marked[Story("foreign").namespace.hex()]["stale"] is True
    for place in ((), ("--cold-dir", str(tmp_path / "cold"))):
        assert cli("prune", "--stale", "--yes", *place).code == 0
        assert (_left(tmp_path / "cold", "mine"), _left(tmp_path / "cold", "foreign")) == (3, 0)
    assert _held(process) == ["mine 1 2 3", "foreign", "sound"]
    process.communicate(timeout=60)
    assert cli("prune", "--stale", "--yes").code == 0
    assert _left(tmp_path / "cold", "mine") == 0


@pytest.mark.nightly
def test_every_store_of_a_directory_is_told(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path
) -> None:
    first, second = embed(), embed()
    result = cli("prune", "--older", "30d", "--yes", "--cold-dir", str(tmp_path / "cold"))
    assert result.code == 0, result.err
    for process in (first, second):
        assert _held(process) == ["mine 1", "foreign 1 2 3", "sound"]


@pytest.mark.parametrize(
    "arguments", some([["--stale"], ["--older", "12h"], ["--to", "0"]], ["--older", "12h"])
)
def test_what_another_process_wrote_beside_a_running_store_is_deleted_too(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path, arguments: list[str]
) -> None:
    embed()
    tier = open_cold(tmp_path / "cold")
    _write(tier, "other", range(1, 3), 1, format=1, software=OTHER)
    result = cli("prune", *arguments, "--yes")
    assert (result.code, result.err) == (0, "")
    assert _left(tmp_path / "cold", "other") == 0


@pytest.mark.nightly
def test_rm_deletes_what_another_process_wrote_beside_a_running_store(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path
) -> None:
    embed()
    tier = open_cold(tmp_path / "cold")
    _write(tier, "mine", range(4, 6), 1)
    result = cli("rm", Story("mine").namespace.hex(), "--yes")
    assert (result.code, result.out[:15], result.err) == (0, "deleted 5 pages", "")
    assert _left(tmp_path / "cold", "mine") == 0


def test_a_store_that_does_not_answer_forbids_a_deletion_beside_it(
    cli: Cli, cold_dir: Path, start_store: Callable[..., Any]
) -> None:
    stuck = start_store("stuck")
    os.kill(stuck.pid, signal.SIGSTOP)
    arguments = ("--yes", "--timeout", "0.3", "--cold-dir", str(cold_dir))
    result = cli("prune", "--stale", *arguments)
    assert (result.code, result.out) == (1, "")
    assert "may be in use" in result.err
    assert len(files_in(cold_dir)) == 12


@pytest.mark.nightly
def test_ls_shows_when_a_namespace_came_when_it_was_used_and_what_it_is_for(
    cli: Cli, cold_dir: Path
) -> None:
    rows = {row["namespace"]: row for row in json.loads(cli("ls", "--format", "json").out)}
    unused, other = rows[Story("unused").namespace.hex()], rows[Story("other").namespace.hex()]
    assert unused["versions"] == installed()
    assert (unused["stale"], other["stale"]) == (False, True)
    assert rows[Story("unknown").namespace.hex()]["stale"] is None
    used = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 40 * 86_400))
    today = {time.strftime("%Y-%m-%d", time.gmtime(time.time() - late)) for late in (0, 60)}
    assert unused["used_at"].startswith(used)
    assert unused["created_at"][:10] in today
    shown = cli("ls")
    line = next(x for x in shown.out.splitlines() if Story("other").namespace.hex()[:16] in x)
    assert "mlx 0.1.2, mlx-lm 0.3.4 (stale)" in line
    assert "ago" in line
    header = shown.out.splitlines()[0].split()
    assert {"CREATED", "USED", "VERSIONS"} <= set(header)
    assert "2 stale; see omlx-cache prune --stale --dry-run" in shown.err
