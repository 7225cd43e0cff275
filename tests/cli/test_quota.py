"""`omlx-cache quota`: the budget of a directory, shown and changed."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.embedded import embedded_stores
from kit.examples import some
from kit.storage import Story, disk_usage, open_cold, set_budget
from omlx_cache.identity.parts import salt_digest
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.small_files import read_budget

Cli = Callable[..., Any]
LIMIT = 1 << 24

_EMBED = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24)) as store:
    commit(store, Story("running", nbytes=2**16), *range(1, 9))
    assert store.flush()
    print("ready", flush=True)
    for line in sys.stdin:
        store.cold.settle()
        print(store.stats().cold.limit_bytes, store.stats().cold.nbytes, flush=True)
"""


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Pages of two tenants and two models, of a store whose budget is 16 MiB."""
    tier = open_cold(tmp_path / "cold", LIMIT)
    for name, salt, label in (("a", "alice", "llama"), ("b", "alice", "qwen"), ("c", None, "qwen")):
        document = {"model": name * 64, "salt": salt_digest(salt), "label": label}
        for page in Story(name).pages(1, 2, 3):
            assert tier.write(page, time.time_ns(), document) == "written"
    tier.close()
    return tmp_path / "cold"


@pytest.fixture
def embed(environment: dict[str, str]) -> Iterator[Callable[..., Any]]:
    with embedded_stores(_EMBED) as run:
        yield lambda **variables: run({**environment, **variables})


def _state(result: Any) -> Any:
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_it_shows_the_budget_who_set_it_and_what_is_used(cli: Cli, cold_dir: Path) -> None:
    result = cli("quota")
    assert result.code == 0
    assert str(cold_dir) in result.out
    assert "16 MiB, set by a store, as its cold_bytes" in result.out
    state = _state(cli("quota", "--format", "json"))
    assert (state["bytes"], state["set_by"]) == (LIMIT, "store")
    assert disk_usage(cold_dir) <= state["used_bytes"] <= LIMIT


def test_what_it_says_is_used_lies_on_the_disk_and_is_no_more_than_a_store_counts(
    cli: Cli, cold_dir: Path
) -> None:
    state = _state(cli("quota", "--format", "json"))
    tier = open_cold(cold_dir, LIMIT)
    assert disk_usage(cold_dir) <= state["used_bytes"] <= tier.usage().nbytes
    tier.close()


def test_a_size_is_the_budget_until_it_is_given_back(cli: Cli, cold_dir: Path) -> None:
    for amount, expected in (
        ("1 GiB", Budget(1 << 30, "quota")),
        ("auto", Budget(1 << 30, "free space")),
        ("0", Budget(0, "quota")),
    ):
        assert cli("quota", amount).code == 0
        assert read_budget(cold_dir) == expected


def test_a_size_takes_the_shares_of_an_earlier_version_out_of_the_file(
    cli: Cli, cold_dir: Path
) -> None:
    shares = {"salt": {"*": {"fraction": 0.125}}}
    set_budget(cold_dir, Budget(LIMIT, "store", shares))
    assert cli("quota").code == 0
    assert read_budget(cold_dir) == Budget(LIMIT, "store", shares)
    assert cli("quota", "1GiB").code == 0
    assert read_budget(cold_dir) == Budget(1 << 30, "quota")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    some(
        [
            (["40G"], 2, "unknown unit"),
            (["25%"], 2, "or auto"),
            (["-5"], 2, "'-5': not a size"),
            (["40"], 2, "40 B has no room for a page; give a unit"),
            (["none"], 2, "or auto"),
            (["--each-salt", "10%"], 2, "unknown flag"),
        ],
        (["40G"], 2, "unknown unit"),
        (["40"], 2, "40 B has no room for a page; give a unit"),
    ),
)
def test_what_is_no_budget_is_refused_and_changes_nothing(
    cli: Cli, cold_dir: Path, arguments: list[str], code: int, says: str
) -> None:
    result = cli("quota", *arguments)
    assert (result.code, result.out) == (code, "")
    assert says in result.err
    assert read_budget(cold_dir) == Budget(LIMIT, "store")


def test_a_directory_can_have_a_budget_before_the_first_store_opens_it(
    cli: Cli, tmp_path: Path
) -> None:
    missing = cli("quota")
    assert missing.code == 69
    assert "no cold directory" in missing.err
    assert cli("quota", "auto").code == 69
    assert not (tmp_path / "cold").exists()
    assert cli("quota", "10MiB").code == 0
    assert (tmp_path / "cold").stat().st_mode & 0o777 == 0o700
    tier = open_cold(tmp_path / "cold", LIMIT)
    assert tier.usage().limit_bytes == 10 << 20
    tier.close()


def test_a_named_directory_that_is_missing_is_not_made(cli: Cli, tmp_path: Path) -> None:
    result = cli("quota", "10MiB", "--cold-dir", str(tmp_path / "typo"))
    assert result.code == 1
    assert "there is no directory" in result.err
    assert not (tmp_path / "typo").exists()


def test_a_directory_of_other_things_gets_no_budget(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = cli("quota", "10MiB", "--cold-dir", str(tmp_path))
    assert (result.code, result.out) == (1, "")
    assert "holds other things" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "empty" / ".DS_Store").write_text("")
    assert cli("quota", "10MiB", "--cold-dir", str(tmp_path / "empty")).code == 0


def test_auto_says_what_counts_until_a_store_sets_it(cli: Cli, cold_dir: Path) -> None:
    assert cli("quota", "1GiB").err == ""
    assert "1 GiB counts until a store opens the directory" in cli("quota", "auto").err


def test_a_directory_without_a_budget_has_none_to_give_back(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir(mode=0o700)
    assert "none yet" in cli("quota").out
    result = cli("quota", "auto")
    assert result.code == 1
    assert "omlx-cache quota 20GiB" in result.err


def test_a_running_store_goes_by_it_without_a_restart_wherever_its_directory_is(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path
) -> None:
    process = embed(OMLX_CACHE_COLD_DIR=str(tmp_path / "elsewhere"))
    half = disk_usage(tmp_path / "elsewhere") // 2
    result = cli("quota", str(half))
    assert result.code == 0
    assert str(tmp_path / "elsewhere") in result.out
    assert "evicts it within seconds" in result.err
    process.stdin.write("settle\n")
    process.stdin.flush()
    limit, used = map(int, process.stdout.readline().split())
    assert limit == half >= used
    assert disk_usage(tmp_path / "elsewhere") <= half


@pytest.mark.nightly
def test_stores_on_several_directories_are_not_guessed_between(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path
) -> None:
    processes = [embed(OMLX_CACHE_COLD_DIR=str(tmp_path / name)) for name in ("one", "two")]
    result = cli("quota", "1GiB")
    assert (result.code, result.out) == (2, "")
    assert f"--cold-dir {tmp_path / 'one'}" in result.err
    assert cli("quota", "1GiB", "--pid", str(processes[1].pid)).code == 0
    assert read_budget(tmp_path / "two") == Budget(1 << 30, "quota")


@pytest.mark.nightly
def test_a_store_that_does_not_answer_can_be_passed_over(
    cli: Cli, embed: Callable[..., Any], tmp_path: Path
) -> None:
    process = embed()
    process.send_signal(signal.SIGSTOP)
    try:
        result = cli("quota", "--timeout", "0.2")
        assert (result.code, result.out) == (69, "")
        assert "--cold-dir names the directory, and no store" in result.err
        assert cli("quota", "--cold-dir", str(tmp_path / "cold"), "1GiB").code == 0
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_directory_whose_parents_are_missing_is_not_made(cli: Cli, tmp_path: Path) -> None:
    """Its disk may not be mounted yet."""
    cold = tmp_path / "away" / "cold"
    ended = cli("quota", "1GiB", OMLX_CACHE_COLD_DIR=str(cold))
    assert ended.code == 1
    assert f"{cold.parent} is missing" in ended.err
    assert not cold.parent.exists()
