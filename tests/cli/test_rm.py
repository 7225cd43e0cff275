"""`omlx-cache rm`: on a running store, or on the directory when no store runs on it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.embedded import embedded_stores
from kit.examples import some
from kit.storage import Story, files_in, open_cold
from omlx_cache.identity.parts import salt_digest

Cli = Callable[..., Any]

_EMBED = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24)) as store:
    for name in ("one", "two"):
        story = Story(name)
        commit(store, story, 1, 2, 3)
    assert store.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Three pages of one namespace and one of another, written and left."""
    tier = open_cold(tmp_path / "cold")
    for name, numbers in (("one", (1, 2, 3)), ("two", (1,))):
        story = Story(name)
        for page in story.pages(*numbers):
            assert tier.write(page, 10**18, {"model_id": name}) == "written"
    return tmp_path / "cold"


@pytest.fixture
def embedded(environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A store that holds three pages in each of two namespaces."""
    with embedded_stores(_EMBED) as run:
        yield run(environment)


def _digest(name: str) -> str:
    return Story(name).namespace.hex()


def test_a_namespace_is_deleted_from_a_directory_that_no_store_uses(
    cli: Cli, cold_dir: Path
) -> None:
    strange = cold_dir / _digest("one") / "notes.txt"
    strange.write_text("not a page")
    result = cli("rm", _digest("one")[:12], "--yes")
    assert result.code == 0
    assert result.out == f"deleted 3 pages of {_digest('one')}\n"
    assert len(files_in(cold_dir)) == 1
    assert strange.exists()
    assert cli("rm", _digest("two"), "--yes").code == 0
    assert not (cold_dir / _digest("two")).exists()


def test_a_dry_run_says_what_would_go_and_deletes_nothing(cli: Cli, cold_dir: Path) -> None:
    result = cli("rm", _digest("one"), "--dry-run")
    assert result.code == 0
    assert result.out.startswith("would delete 3 pages (")
    assert f"of {_digest('one')}, one" in result.out
    row = json.loads(cli("rm", _digest("one"), "--dry-run", "--format", "json").out)
    assert (row["pages"], row["deleted_pages"]) == (3, 0)
    assert [(each["pages"], each["label"]) for each in row["namespaces"]] == [(3, "one")]
    assert len(files_in(cold_dir)) == 4


def test_without_a_terminal_nothing_is_deleted_unasked(cli: Cli, cold_dir: Path) -> None:
    result = cli("rm", _digest("one"))
    assert (result.code, result.out) == (2, "")
    assert "give --yes" in result.err
    assert len(files_in(cold_dir)) == 4


@pytest.mark.parametrize(
    ("answer", "left"), some([("y\n", 1), ("n\n", 4), ("\n", 4), ("\x04", 4)], ("y\n", 1))
)
def test_on_a_terminal_it_asks_first(
    on_a_terminal: Callable[..., tuple[int, str]], cold_dir: Path, answer: str, left: int
) -> None:
    code, out = on_a_terminal(answer, "rm", _digest("one"))
    assert "Delete 3 pages (" in out
    assert len(files_in(cold_dir)) == left
    assert code == (0 if left == 1 else 1)
    assert ("nothing was deleted" in out) == (left == 4)


def test_an_ambiguous_prefix_is_refused_with_its_matches(cli: Cli, tmp_path: Path) -> None:
    tier = open_cold(tmp_path / "cold")
    stories = [Story(f"{n}") for n in range(17)]
    for story in stories:
        assert tier.write(story.page(1), 10**18, {}) == "written"
    digests = sorted(story.namespace.hex() for story in stories)
    digit = next(d[0] for d in digests if sum(o[0] == d[0] for o in digests) > 1)
    matches = [digest for digest in digests if digest[0] == digit]
    result = cli("rm", digit, "--yes")
    assert (result.code, result.out) == (1, "")
    assert f"{len(matches)} namespaces begin with {digit}: {matches[0][:16]}" in result.err
    assert len(files_in(tmp_path)) == 17
    unknown = cli("rm", "0" * 64, "--yes")
    assert (unknown.code, unknown.out) == (1, "")
    assert f"no namespace begins with {'0' * 64}\n" in unknown.err


@pytest.mark.nightly
def test_no_directory_is_69_and_an_empty_target_2(cli: Cli, tmp_path: Path) -> None:
    assert cli("rm", "ab", "--yes").code == 69
    assert cli("rm", "", "--yes").code == 2
    assert cli("rm").code == 2


def test_a_running_store_forgets_the_namespace_in_memory_too(
    cli: Cli, embedded: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    result = cli("rm", _digest("one")[:10], "--yes", "--format", "json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["deleted_pages"] == 3
    (left,) = json.loads(cli("ls", "--format", "json").out)
    assert (left["namespace"], left["pages"]) == (_digest("two"), 3)
    assert len(files_in(tmp_path / "cold")) == 3


def test_a_directory_that_a_store_uses_is_left_to_that_store(
    cli: Cli, embedded: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    (tmp_path / "other name").symlink_to(tmp_path / "cold")
    result = cli("rm", _digest("one"), "--yes", "--cold-dir", str(tmp_path / "other name"))
    assert result.code == 0
    (left,) = json.loads(cli("ls", "--format", "json").out)
    assert left["namespace"] == _digest("two")


@pytest.mark.nightly
def test_another_directory_is_cleared_beside_a_running_store(
    cli: Cli, embedded: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    tier = open_cold(tmp_path / "archive")
    assert tier.write(Story("one").page(1), 10**18, {}) == "written"
    result = cli("rm", _digest("one"), "--yes", "--cold-dir", str(tmp_path / "archive"))
    assert (result.code, files_in(tmp_path / "archive")) == (0, [])
    assert len(files_in(tmp_path / "cold")) == 6


def test_a_store_that_does_not_say_what_it_uses_forbids_a_deletion_beside_it(
    cli: Cli, cold_dir: Path, start_store: Callable[..., Any]
) -> None:
    stuck = start_store("stuck")
    os.kill(stuck.pid, signal.SIGSTOP)
    arguments = ("--yes", "--timeout", "0.3", "--cold-dir", str(cold_dir))
    result = cli("rm", _digest("one"), *arguments)
    assert (result.code, result.out) == (1, "")
    assert "may be in use" in result.err
    assert len(files_in(cold_dir)) == 4


@pytest.fixture
def tenants(tmp_path: Path) -> dict[str, Story]:
    """A page in each of four namespaces: two models, one of them under two salts as well."""
    tier = open_cold(tmp_path / "cold")
    stories = {}
    for label, salt in (
        ("org/llama", None),
        ("org/llama", "tenant-a"),
        ("org/llama", b"tenant-b"),
        ("qwen", None),
    ):
        name = f"{label} {salt!r}"
        stories[name] = Story(name)
        document = {"label": label, "salt": salt_digest(salt)}
        assert tier.write(stories[name].page(1), 10**18, document) == "written"
    return stories


def _left(directory: Path, stories: dict[str, Story]) -> list[str]:
    return [name for name, story in stories.items() if files_in(directory / story.namespace.hex())]


@pytest.mark.parametrize(
    ("target", "left"),
    some(
        [
            ("org/llama", ["qwen None"]),
            ("llama", ["qwen None"]),
            ("qwen", ["org/llama None", "org/llama 'tenant-a'", "org/llama b'tenant-b'"]),
            ("tenant-a", ["org/llama None", "org/llama b'tenant-b'", "qwen None"]),
            ("tenant-b", ["org/llama None", "org/llama 'tenant-a'", "qwen None"]),
        ],
        ("llama", ["qwen None"]),
        ("tenant-a", ["org/llama None", "org/llama b'tenant-b'", "qwen None"]),
    ),
)
def test_a_model_or_a_salt_names_all_of_its_namespaces(
    cli: Cli, tmp_path: Path, tenants: dict[str, Story], target: str, left: list[str]
) -> None:
    assert cli("rm", target, "--yes").code == 0
    assert _left(tmp_path / "cold", tenants) == left


def test_every_namespace_of_a_model_is_named_before_it_is_deleted(
    cli: Cli, tenants: dict[str, Story]
) -> None:
    first, *others = cli("rm", "llama", "--dry-run").out.splitlines()
    assert first.startswith("would delete 3 pages (")
    assert first.endswith(" of 3 namespaces:")
    mine = {story.namespace.hex() for name, story in tenants.items() if "llama" in name}
    assert {line.split()[-2].rstrip(",") for line in others} == mine


def test_a_model_is_named_by_its_directory(
    cli: Cli, tmp_path: Path, tenants: dict[str, Story]
) -> None:
    (tmp_path / "models" / "qwen").mkdir(parents=True)
    assert cli("rm", str(tmp_path / "models" / "qwen"), "--yes").code == 0
    assert "qwen None" not in _left(tmp_path / "cold", tenants)


def test_a_salt_from_standard_input_is_told_to_nobody(
    environment: dict[str, str], tmp_path: Path, tenants: dict[str, Story]
) -> None:
    def rm(salt: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "omlx_cache_daemon", "rm", "-", "--as", "salt", "--yes"],
            env=environment,
            input=f"{salt}\n",
            capture_output=True,
            text=True,
            timeout=60,
        )

    wrong, right = rm("tenant-x"), rm("tenant-a")
    assert (wrong.returncode, right.returncode) == (1, 0)
    assert "tenant" not in wrong.stdout + wrong.stderr + right.stdout + right.stderr
    assert len(_left(tmp_path / "cold", tenants)) == 3


def test_a_salt_is_in_no_listing(cli: Cli, tenants: dict[str, Story]) -> None:
    listed = cli("ls", "--format", "json").out + cli("ls").out
    assert "tenant" not in listed
    salts = {row["salt"] for row in json.loads(cli("ls", "--format", "json").out)}
    assert len(salts) == 3
    assert all(digest not in listed for digest in map(salt_digest, ("tenant-a", b"tenant-b")))


def test_a_name_with_two_meanings_is_refused_until_one_is_said(cli: Cli, tmp_path: Path) -> None:
    tier = open_cold(tmp_path / "cold")
    digit = _digest("one")[0]
    for name, document in (("one", {"salt": ""}), ("two", {"label": digit})):
        assert tier.write(Story(name).page(1), 10**18, document) == "written"
    refused = cli("rm", digit, "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert "--as namespace|model" in refused.err
    assert len(files_in(tmp_path)) == 2
    assert (
        cli("rm", digit, "--as", "model", "--yes").out == f"deleted 1 pages of {_digest('two')}\n"
    )


@pytest.mark.nightly
def test_no_salt_and_no_model_is_not_every_namespace(
    cli: Cli, tmp_path: Path, tenants: dict[str, Story]
) -> None:
    for arguments in (("nothing",), ("", "--as", "salt"), ("none", "--as", "model")):
        assert cli("rm", *arguments, "--yes").code in (1, 2)
    assert len(_left(tmp_path / "cold", tenants)) == 4


@pytest.mark.nightly
def test_a_running_store_deletes_by_salt(
    cli: Cli, environment: dict[str, str], tmp_path: Path, tenants: dict[str, Story]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _EMBED],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        assert cli("rm", "tenant-a", "--yes").code == 0
        assert len(_left(tmp_path / "cold", tenants)) == 3
        assert len(json.loads(cli("ls", "--format", "json").out)) == 5
    finally:
        process.communicate(timeout=60)
