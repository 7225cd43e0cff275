"""`omlx-cache quota`: a budget and pins of a directory, shown and changed for all processes."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kit.children import told
from kit.storage import Story, disk_usage, open_cold, set_budget, write_pages
from kit.storage.mounts import small_disk
from kit.terminals import on_terminal
from omlx_cache.identity.namespace import salt_digest
from omlx_cache_daemon.changing import change_pins
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.small_files import Budget, read_budget, read_pins, write_budget

from .conftest import Cli

LIMIT = 1 << 21
PAGES = 6

EMBED = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**21, hot_bytes=2**20)) as store:
    print("ready", flush=True)
    for line in sys.stdin:
        for name in line.split():
            for number in range(1, 33):
                commit(store, Story(name, nbytes=2**16), number)
                assert store.flush()
        store.cold.settle()
        usage = store.stats().cold
        kept = sum(page in store.cold for page in Story("a").ids(*range(1, 7)))
        print(kept, usage.limit_bytes, usage.nbytes, flush=True)
"""


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Pages of two tenants and two models, of a store whose budget is 2 MiB."""
    for name, salt, label in (("a", "alice", "meta/llama"), ("b", "bob", "qwen")):
        document = {"model": name * 64, "salt": salt_digest(salt), "label": label}
        story = Story(name, nbytes=2**14)
        write_pages(tmp_path / "cold", story, *range(1, PAGES + 1), limit_bytes=LIMIT, **document)
    return tmp_path / "cold"


def _asked(process: Any, names: str = "") -> list[int]:
    """Have a store write stories; return how many pages of the first it has, its budget and use."""
    return [int(word) for word in told(process, names).split()]


def _state(result: Any) -> Any:
    assert result.code == 0, result.err
    return json.loads(result.out)


def _key(number: int) -> str:
    return Story("a", nbytes=2**14).id(number).key.hex()


def test_it_shows_the_budget_who_set_it_and_what_is_used(cli: Cli, cold_dir: Path) -> None:
    shown = cli("quota").out
    assert "2 MiB, set by a store, as its cold_bytes" in shown
    assert "PINNED" not in shown
    state = _state(cli("quota", "--format", "json"))
    assert (state["bytes"], state["set_by"], state["directory"]) == (LIMIT, "store", str(cold_dir))
    tier = open_cold(cold_dir, LIMIT)
    assert disk_usage(cold_dir) <= state["used_bytes"] == tier.usage().nbytes
    tier.close()


def test_a_disk_without_files_is_told_although_bytes_are_free(
    cli: Cli, cold_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSystem, "spare_files", lambda self, path: 0)
    assert _state(cli("quota", "--format", "json"))["lacks_files"]
    assert "hardly a file (inode) left" in cli("quota").out


def test_a_size_is_the_budget_until_it_is_given_back(cli: Cli, cold_dir: Path) -> None:
    # The shares of an earlier version go with the first change.
    set_budget(cold_dir, Budget(LIMIT, "store", {"salt": {"*": {"fraction": 0.125}}}))
    for amount, expected, says in (
        ("1 GiB", Budget(1 << 30, "quota"), ""),
        ("auto", Budget(1 << 30, "free space"), "it stays at 1 GiB until one is left"),
        ("0", Budget(0, "quota"), ""),
        ("auto", Budget(0, "free space"), "it stays at 0 B until one is left"),
        ("1PiB", Budget(2**50, "quota"), "omlx-cache: the disk has "),
    ):
        ended = cli("quota", amount, *(["--yes"] if amount == "0" else []))
        assert (ended.code, read_budget(cold_dir)) == (0, expected)
        assert says in ended.err
        assert ("are evicted, used longest ago first" in ended.err) == (amount == "0")
        assert ("set by" in ended.out) == (expected.set_by == "quota"), "auto set no such budget"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["40G"], 2, "unknown unit"),
        (["25%"], 2, "or auto"),
        (["-5"], 2, "'-5': not a size"),
        (["40", "G"], 2, "unknown unit"),
        (["40"], 2, "40 B has no room for a page: give a unit"),
        (["--each-salt", "10%"], 2, "unknown flag"),
        (["10MiB", "--pin", "llama"], 2, "not allowed with"),
        (["--pin", "nobody"], 1, "no namespace begins with nobody; there are pages of "),
        (["--pin", "ff" * 32, "--as", "key"], 1, "no block's key begins"),
        (["100KiB"], 2, "omlx-cache quota 100kib --yes --cold-dir "),
        (["--for", "7d"], 2, "--for says how long --pin lasts"),
        (["--pin", "llama", "--for", "soon"], 2, "not a period"),
        (["--pin", ""], 2, "names nothing"),
        (["--as", "key"], 2, "--as says"),
        (["--unpin", "llama"], 1, "nothing is pinned as llama"),
        (["--pin", "llama", "--cold-dir", "/nowhere"], 1, "No such file"),
    ],
)
def test_what_it_cannot_do_it_says_and_changes_nothing(
    cli: Cli, cold_dir: Path, arguments: list[str], code: int, says: str
) -> None:
    cli("quota", *arguments).assert_refused(code, says)
    assert (read_budget(cold_dir), read_pins(cold_dir)) == (Budget(LIMIT, "store"), ())


def test_a_directory_can_have_a_budget_before_the_first_store_opens_it_and_none_is_made(
    cli: Cli, tmp_path: Path
) -> None:
    for arguments in ((), ("auto",), ("10MiB",)):
        ended = cli("quota", *arguments)
        assert (ended.code, "--cold-dir names another" in ended.err) == (69, True)
        assert f"using {tmp_path / 'cold'}" in ended.err
    assert not (tmp_path / "cold").exists()
    (tmp_path / "cold").mkdir(mode=0o700)
    assert cli("quota", "10MiB").code == 0
    tier = open_cold(tmp_path / "cold", LIMIT)
    assert tier.usage().limit_bytes == 10 << 20
    tier.close()


def test_a_directory_that_is_missing_or_somebodys_gets_no_budget(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "empty" / ".DS_Store").write_text("")
    for name, code, says in (
        ("typo", 1, "No such file"),
        ("", 1, "and no cache: name a cold_dir that is empty"),
        ("empty", 0, ""),
    ):
        result = cli("quota", "10MiB", "--cold-dir", tmp_path / name)
        assert (result.code, says in result.err) == (code, True)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "empty"}


@pytest.mark.parametrize("nbytes", [1 << 17, 1 << 40])
def test_a_full_disk_takes_another_budget(cli: Cli, tmp_path: Path, nbytes: int) -> None:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        place = disk.path / "cold"
        write_pages(place, Story(nbytes=2**14), *range(1, PAGES + 1), limit_bytes=LIMIT)
        with contextlib.suppress(OSError):
            (disk.path / "film.mov").write_bytes(bytes(1 << 20))
        pinned = cli("quota", "--pin", Story().namespace.hex(), "--cold-dir", place)
        assert (pinned.code, "rm --to SIZE makes room" in pinned.err) == (1, True)
        assert cli("quota", nbytes, "--yes", "--cold-dir", place).code == 0
        assert read_budget(place) == Budget(nbytes, "quota")


def test_a_directory_without_a_budget_has_none_to_give_back(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir(mode=0o700)
    assert "none yet" in cli("quota").out
    result = cli("quota", "auto")
    assert (result.code, "omlx-cache quota 20GiB" in result.err) == (1, True)


def test_a_running_store_goes_by_it_without_a_restart_wherever_its_directory_is(
    cli: Cli, start: Callable[..., Any], tmp_path: Path
) -> None:
    one = start(OMLX_CACHE_COLD_DIR=str(tmp_path / "one"))
    assert _asked(one, "x")
    half = disk_usage(tmp_path / "one") // 2
    result = cli("quota", str(half), "--yes")
    assert "evicted, used longest ago first: within seconds" in result.err
    _, limit, used = _asked(one)
    assert limit == half >= used
    # Of a command that is killed the file says something, and the ledger nothing.
    write_budget(tmp_path / "one", Budget(1 << 30, "quota"))
    assert cli("quota", "1GiB").code == 0
    assert _asked(one)[1] == 1 << 30
    assert cli("quota", "auto").code == 0
    assert _asked(one)[1] == LIMIT
    assert read_budget(tmp_path / "one") == Budget(LIMIT, "store")
    two = start(OMLX_CACHE_COLD_DIR=str(tmp_path / "two"))
    result = cli("quota", "1GiB")
    assert (result.code, f"--pid {two.pid}" in result.err) == (2, True)
    assert cli("quota", "1GiB", "--pid", two.pid).code == 0
    assert read_budget(tmp_path / "two") == Budget(1 << 30, "quota")


def test_what_is_pinned_outlives_a_process_that_fills_the_directory_and_its_restart(
    cli: Cli, cold_dir: Path, start: Callable[..., Any]
) -> None:
    running = start()
    assert cli("quota", "--pin", _key(3)).code == 0
    assert _asked(running, "x y z v w q p")[0] == 3
    running.kill()
    running.wait(60)
    again = start()
    assert _asked(again, "r")[0] == 3
    assert len(_state(cli("quota", "--unpin-all", "--format", "json"))["unpinned"]) == 1
    assert _asked(again, "t")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "kind", "name", "pages"),
    [
        (["meta/llama"], "model", "meta/llama", PAGES),
        (["llama"], "model", "meta/llama", PAGES),
        (["bob"], "salt", salt_digest("bob"), PAGES),
        ([Story("b").namespace.hex()[:10]], "namespace", Story("b").namespace.hex(), PAGES),
        ([_key(4)[:12], "--as", "key"], "key", _key(4), 4),
        ([_key(4)], "key", _key(4), 4),
    ],
)
def test_a_pin_names_a_namespace_a_model_a_salt_or_a_chain(
    cli: Cli, cold_dir: Path, arguments: list[str], kind: str, name: str, pages: int
) -> None:
    shown = _state(cli("quota", "--pin", *arguments, "--for", "7d", "--format", "json"))
    (pin,) = shown["pins"]
    assert (pin["kind"], pin["name"], pin["pages"]) == (kind, name, pages)
    (known,) = read_pins(cold_dir)
    assert 6.9 * 86_400 < known.until_ns / 1e9 - time.time() <= 7 * 86_400
    shown_pins = cli("quota").out
    assert name[:12] in shown_pins
    # People read the clock on the wall, programs read UTC.
    assert f"{datetime.fromtimestamp(known.until_ns // 10**9):%Y-%m-%d %H:%M}" in shown_pins
    assert pin["until"].endswith("Z")
    assert pin["until"] not in shown_pins
    # Named again it is the same pin, with another end.
    assert len(_state(cli("quota", "--pin", *arguments, "--format", "json"))["pins"]) == 1
    assert cli("quota", "--unpin", *arguments).code == 0
    assert read_pins(cold_dir) == ()


def test_pins_of_one_chain_by_several_processes_are_ended_together(
    cli: Cli, cold_dir: Path
) -> None:
    story = Story("a", nbytes=2**14)
    mine, theirs = (story.pin(1, 2, since_ns=since) for since in (1, 2))
    change_pins(cold_dir, lambda pins: (mine, theirs))
    assert _state(cli("quota", "--format", "json"))["pinned_pages"] == 2
    assert cli("quota", "--unpin", _key(2)).code == 0
    assert read_pins(cold_dir) == ()


def test_rm_takes_a_pin_with_the_name_that_it_kept(cli: Cli, cold_dir: Path) -> None:
    assert cli("quota", "--pin", "llama").code == 0
    assert "pinned as model meta/llama" in cli("rm", "llama", "--dry-run").out
    assert cli("rm", "bob", "--yes").code == 0
    assert len(read_pins(cold_dir)) == 1
    assert cli("rm", "llama", "--yes").code == 0
    assert read_pins(cold_dir) == ()


@pytest.mark.parametrize("runs", [False, True])
def test_rm_by_use_leaves_what_is_pinned_and_says_how_much(
    cli: Cli, cold_dir: Path, start: Callable[..., Any], runs: bool
) -> None:
    assert cli("quota", "--pin", _key(2)).code == 0
    if runs:
        start()
    shown = _state(cli("rm", "--to", "0", "--older", "0.001s", "--yes", "--format", "json"))
    assert shown["pinned"]["pages"] == 2
    assert shown["deleted_pages"] == 2 * PAGES - 2
    assert "left 2 pages" in cli("rm", "--to", "0", "--yes").out
    assert len(list(cold_dir.rglob("*.safetensors"))) == 2


@pytest.mark.parametrize(
    ("size", "answer", "budget"),
    [
        (["0"], "n\n", LIMIT),
        (["0"], "y\n", 0),
        (["0", "--yes"], "", 0),
        (["100", "KiB"], "n\n", LIMIT),
        (["10", "GiB"], "", 10 << 30),
    ],
)
def test_on_a_terminal_it_asks_before_pages_are_evicted(
    environment: dict[str, str],
    cold_dir: Path,
    size: list[str],
    answer: str,
    budget: int,
) -> None:
    command = [sys.executable, "-m", "omlx_cache_daemon", "quota", *size]
    with on_terminal([*command, "--cold-dir", str(cold_dir)], environment) as terminal:
        if answer:
            terminal.wait_for("Evict ")
            terminal.type(answer)
        code = terminal.ended()
    assert read_budget(cold_dir).nbytes == budget
    assert (code, "Evict " in terminal.shown) == (int(budget == LIMIT), bool(answer))
