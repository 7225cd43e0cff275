"""`omlx-cache rm`: by name, versions, last use and size; in a directory and in running stores."""

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.children import told
from kit.examples import some
from kit.storage import Story, disk_usage, files_in, open_cold, write_pages
from kit.storage.mounts import small_disk
from kit.terminals import on_terminal
from omlx_cache.identity.namespace import salt_digest, software
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS

from .conftest import Cli, Start

DAY = 86_400 * 10**9
OTHER = {"mlx": "0.1.2", "mlx-lm": "0.3.4"}

EMBED = """
import os, sys, time
from omlx_cache.identity import namespace
real = namespace.version_of
if sys.argv[1:]:
    namespace.version_of = lambda name: sys.argv[1] if name == "mlx" else real(name)
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.identity.namespace import Namespace
from omlx_cache.identity.namespace import software
story = Story("mine")
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24)) as store:
    for name, made_by in (("mine", software()), ("foreign", {"mlx": "9", "mlx-lm": "9"})):
        store.register(Namespace(Story(name).namespace, {"format": 1, "software": made_by}))
    commit(store, story, *range(1, 7))
    assert store.flush()
    month = time.time_ns() - 31 * 86_400 * 10**9
    for tier in (store.hot, store.cold):
        if tier is not None:
            tier.demote(story.ids(*range(1, 7)), month)
    for entry in () if store.cold is None else store.cold.listing():
        os.utime(entry.path, ns=(month, month))
    print("ready", flush=True)
    for line in sys.stdin:
        what, name, *numbers = line.split()
        if what == "use":
            store.touch(Story(name).ids(*map(int, numbers)))
        elif what == "write":
            commit(store, Story(name), *map(int, numbers))
            assert store.flush()
        store.refresh()
        store.hot.check_integrity()
        store.cold.check_integrity()
        held = [n for n in range(1, 7) if store.hot.get(Story(name).id(n)) is not None]
        on_disk = [n for n in range(1, 7) if store.cold.info(Story(name).id(n)) is not None]
        print("disk", *on_disk, "memory", *held, flush=True)
"""
"""A store that has used the six pages of a namespace a month ago."""


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Namespaces of these versions, of others, of another format, and one without versions."""
    cold = tmp_path / "cold"
    _write(cold, "now", range(1, 6), 1, format=1, software=software())
    _write(cold, "unused", range(1, 4), 40, format=1, software=software())
    _write(cold, "other", range(1, 3), 1, format=1, software=OTHER)
    _write(cold, "format", range(1, 2), 1, format=77, software=software())
    _write(cold, "unknown", range(1, 2), 1, model="x")
    return cold


def _write(cold: Path, name: str, numbers: range, age_days: float, **document: object) -> None:
    stamp_ns = time.time_ns() - int(age_days * DAY)
    write_pages(cold, Story(name), *numbers, stamp_ns=stamp_ns, **document)


def _digest(name: str) -> str:
    return Story(name).namespace.hex()


def _left(directory: Path, *names: str) -> list[int]:
    return [len(files_in(directory / _digest(name))) for name in names]


def test_a_namespace_goes_and_what_is_no_page_stays(cli: Cli, cold_dir: Path) -> None:
    strange = cold_dir / _digest("now") / "notes.txt"
    strange.write_text("not a page")
    said = json.loads(cli("rm", _digest("now"), "--dry-run", "--format", "json").out)
    assert (said["pages"], said["deleted_pages"], said["directory"]) == (5, 0, str(cold_dir))
    assert [row["namespace"] for row in said["namespaces"]] == [_digest("now")]
    assert _digest("now") in cli("rm", _digest("now"), "--dry-run").out
    assert len(files_in(cold_dir)) == 12
    assert "deleted 5 pages" in cli("rm", _digest("now")[:12], "--yes").out
    assert (strange.exists(), _left(cold_dir, "now")) == (True, [0])
    assert cli("rm", _digest("other"), "--yes").code == 0
    assert not (cold_dir / _digest("other")).exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("",),
        (_digest("now"), "--stale"),
        ("--older", "30"),
        ("--older", "soon"),
        ("--to", "20G"),
        ("--as", "model"),
        ("--as", "salt", "--stale"),
    ],
    ids=" ".join,
)
def test_what_does_not_say_what_to_delete_is_a_usage_error(
    cli: Cli, cold_dir: Path, arguments: tuple[str, ...]
) -> None:
    assert cli("rm", *arguments, "--yes").code == 2
    assert len(files_in(cold_dir)) == 12


def test_without_a_terminal_nothing_is_deleted_unasked(cli: Cli, cold_dir: Path) -> None:
    for what in ((_digest("now"),), ("--older", "1s")):
        cli("rm", *what).assert_refused(2, "give --yes")
    assert len(files_in(cold_dir)) == 12


@pytest.mark.parametrize(
    ("answer", "left"), some([("y\n", 9), ("n\n", 12), ("\x04", 12)], ("y\n", 9), ("n\n", 12))
)
def test_on_a_terminal_it_asks_first(
    environment: dict[str, str], cold_dir: Path, answer: str, left: int
) -> None:
    command = [sys.executable, "-m", "omlx_cache_daemon", "rm", "--older", "30d"]
    with on_terminal(command, environment) as terminal:
        terminal.wait_for("Delete 3 pages (")
        terminal.type(answer)
        code = terminal.ended()
    assert (code, len(files_in(cold_dir))) == (0 if left == 9 else 1, left)


def test_a_name_of_several_things_or_of_none_is_refused(cli: Cli, tmp_path: Path) -> None:
    stories = [Story(f"{n}") for n in range(17)]
    for story in stories:
        write_pages(tmp_path / "cold", story, 1)
    digests = [story.namespace.hex() for story in stories]
    digit = next(d[0] for d in digests if sum(o[0] == d[0] for o in digests) > 1)
    assert "namespaces begin with" in cli("rm", digit, "--yes").err
    assert "no namespace begins with" in cli("rm", "0" * 64, "--yes").err
    write_pages(tmp_path / "cold", Story("x"), 1, label=digit)
    assert "--as namespace|model" in cli("rm", digit, "--yes").err
    assert len(files_in(tmp_path)) == 18
    assert cli("rm", digit, "--as", "model", "--yes").code == 0
    assert _left(tmp_path / "cold", "x") == [0]


@pytest.fixture
def tenants(tmp_path: Path) -> dict[str, Story]:
    """A page in each of four namespaces: two models, one of them under two salts as well."""
    stories = {}
    for name, salt in (
        ("org/llama", None),
        ("org/llama", "a"),
        ("org/llama", b"b"),
        ("qwen", None),
    ):
        stories[f"{name} {salt!r}"] = story = Story(f"{name} {salt!r}")
        write_pages(tmp_path / "cold", story, 1, label=name, salt=salt_digest(salt))
    return stories


@pytest.mark.parametrize(
    ("target", "deleted"),
    [
        ("org/llama", {"org/llama None", "org/llama 'a'", "org/llama b'b'"}),
        ("llama", {"org/llama None", "org/llama 'a'", "org/llama b'b'"}),
        ("models/qwen", {"qwen None"}),
        ("b", {"org/llama b'b'"}),
        ("a", {"org/llama 'a'"}),
    ],
)
def test_a_model_or_a_salt_names_all_of_its_namespaces(
    cli: Cli,
    tmp_path: Path,
    tenants: dict[str, Story],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    deleted: set[str],
) -> None:
    (tmp_path / "models" / "qwen").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    kind = ("--as", "salt") if target in ("a", "b") else ()
    shown = cli("rm", target, *kind, "--dry-run").out
    assert all(tenants[name].namespace.hex() in shown for name in deleted)
    assert cli("rm", target, *kind, "--yes").code == 0
    folders = {n: tmp_path / "cold" / s.namespace.hex() for n, s in tenants.items()}
    gone = {n for n, folder in folders.items() if not files_in(folder)}
    assert gone == deleted


def test_a_salt_from_standard_input_is_told_to_nobody(
    cli: Cli, tmp_path: Path, tenants: dict[str, Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ""
    for salt, code in (("tenant-x", 1), ("a", 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{salt}\n"))
        result = cli("rm", "-", "--as", "salt", "--yes")
        assert result.code == code
        shown += result.out + result.err
    assert "tenant" not in shown
    assert len(files_in(tmp_path / "cold")) == 3
    listed = cli("ls", "--format", "json").out
    assert all(salt_digest(salt) not in listed for salt in ("a", b"b"))


def test_stale_deletes_namespaces_of_other_versions_and_keeps_unknown_ones(
    cli: Cli, cold_dir: Path
) -> None:
    report = json.loads(cli("rm", "--stale", "--yes", "--format", "json").out)
    assert _left(cold_dir, "now", "unused", "other", "format", "unknown") == [5, 3, 0, 0, 1]
    assert not (cold_dir / _digest("other")).exists()
    assert report["stale"]["namespaces"] == sorted(map(_digest, ("other", "format")))
    assert (report["pages"], report["deleted_pages"]) == (3, 3)


def test_older_deletes_pages_by_their_last_use_and_the_superseded_ones(
    cli: Cli, cold_dir: Path
) -> None:
    tier = open_cold(cold_dir)
    tier.touch(Story("unused").ids(1), time.time_ns())
    tier.demote(Story("now").ids(5), SUPERSEDED_NS)
    tier.settle()
    # A root that a killed process left old outlives its deep end.
    root = next(p for p in files_in(cold_dir) if Story("now").id(1).key.hex() in p.name)
    os.utime(root, (0, time.time() - 90 * 86_400))
    assert "deleted 3 pages" in cli("rm", "--older", "30d", "--yes").out
    assert root.exists()
    assert _left(cold_dir, "now", "unused", "other", "format", "unknown") == [4, 1, 2, 1, 1]
    assert cli("rm", "--older", "12h", "--yes").code == 0
    assert _left(cold_dir, "now", "unused", "other", "format", "unknown") == [0, 1, 0, 0, 0]


def test_to_deletes_the_oldest_and_deepest_until_the_directory_is_that_small(
    cli: Cli, tmp_path: Path
) -> None:
    cold_dir = tmp_path / "cold"
    for name, age in (("first", 3), ("second", 2), ("third", 1)):
        story, stamp_ns = Story(name, nbytes=64 * 1024), time.time_ns() - age * DAY
        write_pages(cold_dir, story, *range(1, 11), stamp_ns=stamp_ns, limit_bytes=2**24)
    limit = disk_usage(cold_dir) // 2
    assert cli("rm", "--to", f"{limit}", "--yes").code == 0
    assert limit - 2 * 96 * 1024 < disk_usage(cold_dir) <= limit
    first, kept, third = _left(cold_dir, "first", "second", "third")
    assert (first, third) == (0, 10)
    names = {path.name[:64] for path in files_in(cold_dir / _digest("second"))}
    assert names == {Story("second").id(n).key.hex() for n in range(1, kept + 1)}
    assert "nothing to delete" in cli("rm", "--to", f"{limit}", "--yes").out


def test_options_combine_and_a_page_counts_for_one_reason(cli: Cli, cold_dir: Path) -> None:
    asked = ("rm", "--stale", "--older", "30d", "--to", "0", "--dry-run")
    report = json.loads(cli(*asked, "--format", "json").out)
    parts = [report[name]["pages"] for name in ("stale", "older", "surplus")]
    assert (parts, report["pages"], report["deleted_pages"]) == ([3, 3, 6], 12, 0)
    assert len(files_in(cold_dir)) == 12
    assert len(cli(*asked).out.splitlines()) == 4


def test_a_store_that_does_not_answer_forbids_a_deletion_beside_it(
    cli: Cli, cold_dir: Path, start_store: Callable[..., Any]
) -> None:
    stuck = start_store("stuck")
    os.kill(stuck.pid, signal.SIGSTOP)
    for what in (_digest("now"), "--stale"):
        cli("rm", what, "--yes", "--timeout", "0.3", "--cold-dir", str(cold_dir)).assert_refused(
            1, "may be in use"
        )
    assert len(files_in(cold_dir)) == 12


@pytest.mark.parametrize("place", [False, True])
def test_a_name_goes_from_the_memory_of_all_stores_of_a_directory(
    cli: Cli, start: Start, tmp_path: Path, place: bool
) -> None:
    first, second, hidden = start(), start(), start(OMLX_CACHE_SOCKET="off")
    assert told(first, "write other 1 2")
    assert told(second, "write other 3 4 5")
    (tmp_path / "link").symlink_to(tmp_path / "cold")
    arguments = ("--cold-dir", str(tmp_path / "link")) if place else ()
    result = cli("rm", _digest("other"), "--yes", "--format", "json", *arguments)
    assert (json.loads(result.out)["deleted_pages"], result.err) == (5, "")
    assert cli("rm", _digest("mine"), "--yes", *arguments).code == 0
    for process in (first, second):
        assert told(process, "look mine") == told(process, "look other") == "disk memory"
    # It has no socket to be asked by, and misses what is gone from its next look-up on.
    assert told(hidden, "look mine").startswith("disk memory")
    assert files_in(tmp_path / "cold") == []


def test_what_one_store_has_used_since_is_not_old_whoever_is_asked_first(
    cli: Cli, start: Start, tmp_path: Path
) -> None:
    processes = sorted((start(), start()), key=lambda process: process.pid)
    for number, process in enumerate(processes, 1):
        told(process, f"use mine {number}")
    arguments = ("rm", "--older", "30d", "--format", "json")
    assert json.loads(cli(*arguments, "--dry-run").out)["pages"] == 4
    assert json.loads(cli(*arguments, "--yes").out)["deleted_pages"] == 4
    for process in processes:
        assert told(process, "look mine").startswith("disk 1 2 memory")


def test_a_running_store_keeps_in_memory_what_its_disk_had_too_much_of(
    cli: Cli, start: Start, tmp_path: Path
) -> None:
    process = start()
    _write(tmp_path / "cold", "beside", range(1, 3), 1, format=1, software=OTHER)
    assert cli("rm", "--to", "0", "--yes").code == 0
    assert files_in(tmp_path / "cold") == []
    assert told(process, "look mine") == "disk memory 1 2 3 4 5 6"


@pytest.mark.parametrize(
    "arguments", [["--to", "0"], ["--older", "30d"], [Story("mine").namespace.hex()]]
)
def test_a_disk_that_is_read_only_costs_a_running_store_nothing(
    cli: Cli, start: Start, tmp_path: Path, arguments: list[str]
) -> None:
    with small_disk(tmp_path / "cold", "size=4m") as disk:
        process = start()
        disk.remount("ro")
        ended = cli("rm", *arguments, "--yes")
        assert (ended.code, "nothing was deleted" in ended.err) == (1, True)
        assert told(process, "look mine") == "disk 1 2 3 4 5 6 memory 1 2 3 4 5 6"
        disk.remount("rw")
        assert cli("rm", *arguments, "--yes").code == 0
        assert told(process, "look mine").startswith("disk memory")
        process.communicate(timeout=60)


def test_what_a_running_store_of_other_versions_uses_is_not_stale(
    cli: Cli, start: Start, tmp_path: Path
) -> None:
    process = start("0.0.7")
    assert told(process, "write foreign 1 2 3")
    rows = {row["namespace"]: row["stale"] for row in json.loads(cli("ls", "--format", "json").out)}
    assert rows == {_digest("mine"): False, _digest("foreign"): True}
    for place in ((), ("--cold-dir", str(tmp_path / "cold"))):
        assert cli("rm", "--stale", "--yes", *place).code == 0
        assert _left(tmp_path / "cold", "mine", "foreign") == [6, 0]
    process.communicate(timeout=60)
    assert cli("rm", "--stale", "--yes").code == 0
    assert _left(tmp_path / "cold", "mine") == [0]


def test_stores_without_the_directory_are_passed_over_and_several_are_chosen_from(
    cli: Cli, start: Start, tmp_path: Path
) -> None:
    start()
    passing = start(OMLX_CACHE_HOT_CACHE_ONLY="1")
    for command in (["ls"], ["rm", "--older", "1d", "--dry-run"]):
        ended = cli(*command)
        assert ended.code == 0
        assert f"passed over, without a directory: --pid {passing.pid}\n" in ended.err
    start(OMLX_CACHE_COLD_DIR=str(tmp_path / "other"))
    for command in (["ls"], ["ls", "/ab"], ["rm", "--older", "1d"], ["rm", "one"]):
        ended = cli(*command)
        assert ended.code == 2
        assert "stores are running; choose one" in ended.err
