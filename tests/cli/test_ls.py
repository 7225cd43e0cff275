"""`omlx-cache ls`: namespaces, pages and one page in full, from files and from a running store."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.storage import Story, write_pages
from omlx_cache.control.replies import PageDetails
from omlx_cache.identity.namespace import installed, software
from omlx_cache_daemon.checking import with_verdict

from .conftest import Cli, Start

ONE = Story("one").namespace.hex()
KEY = Story("one").id(3).key.hex()

EMBED = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24, hot_bytes=0)):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Pages of three namespaces: of other versions, of these, and one that says nothing."""
    for name, document in (
        ("one", {"format": 1, "label": "llama\x1b[31m", "software": {"mlx": "0.1", "mlx-lm": "1"}}),
        ("two", {"format": 1, "label": "qwen", "software": software()}),
        ("three", {"model": "f" * 64}),
    ):
        hour_ago = time.time_ns() - 3600 * 10**9
        numbers = range(1, 14)
        write_pages(tmp_path / "cold", Story(name), *numbers, stamp_ns=hour_ago, **document)
    return tmp_path / "cold"


@pytest.fixture(params=["files", "store"])
def place(request: pytest.FixtureRequest, cold_dir: Path, start: Start) -> str:
    """Nobody, or a store that has opened the directory."""
    if request.param == "store":
        start()
    return request.param


def test_it_says_the_same_with_and_without_a_running_store(
    cli: Cli, cold_dir: Path, start: Start
) -> None:
    asked = [
        ["ls"],
        ["ls", "--limit", "1"],
        ["ls", ONE[:9]],
        ["ls", ONE, "--limit", "5"],
        ["ls", f"{ONE[:4]}/{KEY[:12]}"],
        ["ls", "/0", "--limit", "3"],
    ]
    # First what nobody is asked about: a store that opens the directory touches nothing there.
    read = [cli(*arguments, "--cold-dir", cold_dir, "--format", "json") for arguments in asked]
    start()
    for arguments, offline in zip(asked, read, strict=True):
        online = cli(*arguments, "--format", "json")
        assert (online.code, online.err) == (offline.code, offline.err) == (0, offline.err)
        rows = json.loads(online.out)
        assert _without_ages(rows) == _without_ages(json.loads(offline.out))
        assert rows


def _without_ages(rows: Any) -> Any:
    return [{**row, "age_s": row.get("age_s") is None} for row in rows]


def test_namespaces_say_what_they_are_of_and_whether_they_are_stale(cli: Cli, place: str) -> None:
    result = cli("ls", "--format", "json")
    rows = {row["namespace"]: row for row in json.loads(result.out)}
    assert ("no store is running; using" in result.err) == (place == "files")
    one, two, three = (rows[Story(name).namespace.hex()] for name in ("one", "two", "three"))
    assert (one["stale"], two["stale"], three["stale"]) == (True, False, None)
    assert (two["versions"], three["label"]) == (installed(), "f" * 12)
    assert (one["pages"], one["tokens"], one["tiers"]) == (13, 13 * 16, ["cold"])
    shown = cli("ls")
    assert "\x1b" not in shown.out
    assert "mlx 0.1, mlx-lm 1 (stale)" in shown.out
    assert "60 min ago" in shown.out
    assert "1 stale; see omlx-cache rm --stale --dry-run" in shown.err


def test_a_model_whose_name_ends_like_a_key_is_a_model(cli: Cli, cold_dir: Path) -> None:
    write_pages(cold_dir, Story("four"), 1, format=1, label="org/cafe")
    (page,) = json.loads(cli("ls", "org/cafe", "--format", "json").out)
    assert page["key"] == Story("four").id(1).key.hex()


def test_a_model_is_named_as_people_know_it(cli: Cli, place: str) -> None:
    two = Story("two").namespace.hex()
    by_name, by_digest = (cli("ls", name, "--format", "json") for name in ("qwen", two))
    assert _without_ages(json.loads(by_name.out)) == _without_ages(json.loads(by_digest.out))
    assert json.loads(cli("ls", f"qwen/{Story('two').id(3).key.hex()}", "--format", "json").out)
    cli("ls", "org/other").assert_refused(1, "no model and no salt is org/other")
    cli("ls", "--as", "model").assert_refused(2, "give the name")


def test_a_name_of_two_kinds_is_chosen_and_a_model_s_namespaces_are_limited(
    cli: Cli, cold_dir: Path
) -> None:
    for name in ("four", "five"):
        write_pages(cold_dir, Story(name), 1, format=1, label=ONE[:6])
    cli("ls", ONE[:6]).assert_refused(1, "say which with --as namespace|model")
    rows = json.loads(cli("ls", ONE[:6], "--as", "model", "--format", "json").out)
    assert [row["label"] for row in rows] == [ONE[:6]] * 2
    first = cli("ls", ONE[:6], "--as", "model", "--limit", "1", "--format", "json")
    assert json.loads(first.out) == rows[:1]
    assert len(json.loads(cli("ls", ONE[:6], "--as", "namespace", "--format", "json").out)) == 13


def test_pages_of_other_namespaces_hide_none_of_those_that_are_meant(cli: Cli, place: str) -> None:
    digits: dict[str, set[str]] = {}
    for story in map(Story, ("one", "two", "three")):
        keys = {story.id(number).key.hex()[0] for number in range(1, 14)}
        digits[story.namespace.hex()] = keys
    last = max(digits)
    digit = min(digits[last] & digits[min(digits)])
    (page,) = json.loads(cli("ls", f"{last}/{digit}", "--limit", "1", "--format", "json").out)
    assert (page["namespace"], page["key"][0]) == (last, digit)


def test_a_narrow_terminal_gets_a_block_for_each_row(
    cli: Cli, cold_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("ls", COLUMNS="80").out == cli("ls", COLUMNS="200").out, "into a pipe"
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    blocks = cli("ls", COLUMNS="80").out.split("\n\n")
    assert len(blocks) == len(cli("ls", COLUMNS="200").out.splitlines()) - 1 == 3
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 80
    assert "LABEL      qwen" in "".join(blocks)


def test_pages_are_listed_in_token_order(cli: Cli, cold_dir: Path) -> None:
    pages = json.loads(cli("ls", ONE[:10], "--format", "json").out)
    assert [page["position"] for page in pages] == [16 * n for n in range(1, 14)]
    limited = cli("ls", ONE, "--limit", "2")
    assert len(limited.out.splitlines()) == 3
    assert "only the first 2" in limited.err


def test_a_page_in_full_is_verified_and_four_other_bytes_are_damage(
    cli: Cli, place: str, cold_dir: Path
) -> None:
    sound = cli("ls", f"{ONE[:6]}/{KEY[:12]}", "--format", "json")
    (page,) = json.loads(sound.out)
    assert (sound.code, page["data"], page["key"]) == (0, "verified", KEY)
    assert page["parent"] == Story("one").id(2).key.hex()
    assert page["tensors"][0]["shape"]
    path = Path(page["path"])
    raw = bytearray(path.read_bytes())
    raw[-100:-96] = b"\xff\x00\xff\x00"
    path.write_bytes(raw)
    damaged = cli("ls", f"/{KEY[:12]}", "--format", "json")
    (page,) = json.loads(damaged.out)
    assert (damaged.code, page["data"]) == (1, "damaged")
    assert page["error"].startswith("corrupt: ")
    assert page["tensors"], "what the header says is shown all the same"
    assert " x " in cli("ls", f"/{KEY[:12]}").out
    raw[100] ^= 1
    path.write_bytes(raw)
    assert json.loads(cli("ls", f"/{KEY}", "--format", "json").out)[0]["error"]


def test_a_page_without_a_file_is_not_called_verified(tmp_path: Path) -> None:
    where = {"key": "ab", "group": "paged", "namespace": "", "path": "", "tiers": ()}
    row = PageDetails(**where, position=1, tokens=1, bytes=1, age_s=0)  # type: ignore[arg-type]
    assert with_verdict(row).data == "not verified: not on disk"


def test_what_is_not_there_is_a_failure(cli: Cli, cold_dir: Path, tmp_path: Path) -> None:
    digests = {Story(name).namespace.hex()[0] for name in ("one", "two", "three")}
    missing = next(digit for digit in "0123456789abcdef" if digit not in digests)
    for what, code in (
        ((missing,), 1),
        ((f"/{'0' * 64}",), 1),
        ((f"{missing}/{KEY}",), 1),
        (("xyz",), 1),
        (("/",), 2),
        (("--limit", "0"), 2),
        (("--pid", "1"), 69),
        ((f"/{KEY}", "--socket", "/nowhere"), 69),
    ):
        result = cli("ls", *what)
        assert (result.code, result.out) == (code, ""), what


@pytest.mark.parametrize("arguments", [(), ("ab",), ("/ab",)], ids=" ".join)
def test_a_place_that_is_no_cold_directory_is_said_to_be_that(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    for place, says in (
        (tmp_path / "file", "is not a directory"),
        (tmp_path / "absent", "No such file"),
        # Permissions do not stop root, and tests may run as root; the length of a name does.
        ("/tmp/" + "x" * 300, "File name too long"),
    ):
        cli("ls", *arguments, "--cold-dir", place).assert_refused(1, says)
    cli("ls", *arguments).assert_refused(69)
    assert not (tmp_path / "cold").exists()


def test_a_directory_without_pages_or_open_to_others_says_so(cli: Cli, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    result = cli("ls", "--cold-dir", shared, "--format", "json")
    assert (result.code, result.out, result.err) == (0, "[]\n", "")
    shared.chmod(0o777)
    result = cli("ls", "--cold-dir", shared)
    assert (result.code, "no pages" in result.err, "chmod 700" in result.err) == (0, True, True)


def test_a_named_directory_is_read_even_when_a_store_runs(
    cli: Cli, cold_dir: Path, start_store: Callable[..., Any]
) -> None:
    start_store()
    assert json.loads(cli("ls", "--format", "json").out)[0]["namespace"] == "cd" * 32
    read = cli("ls", "--cold-dir", cold_dir, "--format", "json")
    assert (len(json.loads(read.out)), read.err) == (3, "")


@pytest.mark.parametrize(
    "text",
    some(
        [
            "[" * 500_000 + "]" * 500_000,
            '{"label": ' + '{"a":' * 900 + "1" + "}" * 900 + "}",
            '{"label": ' + "9" * 900_000 + "}",
            '{"label": "' + "x" * 900_000 + '"}',
        ],
        "[" * 500_000 + "]" * 500_000,
    ),
)
def test_a_document_that_is_deep_or_long_hinders_neither_ls_nor_rm(
    cli: Cli, cold_dir: Path, text: str
) -> None:
    (cold_dir / ONE / "namespace.json").write_text(text)
    (row,) = (r for r in json.loads(cli("ls", "--format", "json").out) if r["namespace"] == ONE)
    assert len(row["label"]) <= 200
    assert cli("rm", ONE, "--yes").code == 0
    assert not list((cold_dir / ONE).rglob("*.safetensors"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_another_users_directory_is_said_to_be_that(cli: Cli, cold_dir: Path) -> None:
    os.chown(cold_dir, 12_345, 12_345)
    for command in (("ls",), ("rm", ONE, "--yes")):
        result = cli(*command)
        assert result.code == 1
        assert "belongs to user 12345" in result.err
