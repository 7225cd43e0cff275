"""`verify` reads every page file of a directory, beside running stores and without any."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.output import check_output
from kit.storage import Story, files_in, open_cold

from .conftest import Cli

KIB = 1024
_SERVE = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="64MiB", cold_bytes="64MiB", min_free_bytes=0)) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    store.refresh()
    print(store.stats().cold.pages, flush=True)
"""


@pytest.fixture
def pages(tmp_path: Path) -> list[Path]:
    """The files of ten pages of one namespace and two of another."""
    tier = open_cold(tmp_path / "cold")
    for story, count in ((Story("one"), 10), (Story("two"), 2)):
        for number in range(1, count + 1):
            tier.write(story.page(number), number * 10**9, story.document)
    tier.close()
    return files_in(tmp_path / "cold" / Story("one").namespace.hex())


def _spoil(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 4
    path.write_bytes(raw)


def test_a_sound_directory_is_called_good_in_one_line(cli: Cli, pages: list[Path]) -> None:
    ended = cli("verify")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("12 pages (")
    assert ended.out.count("\n") == 1


def test_damaged_pages_are_named_with_the_reason_and_stay(cli: Cli, pages: list[Path]) -> None:
    _spoil(pages[0])
    os.truncate(pages[1], 18 * KIB)
    (pages[2].parent / "notes.txt").write_text("mine")
    ended = cli("verify")
    assert ended.code == 1
    assert "10 pages" in ended.out
    assert "2 damaged" in ended.out
    assert f"{pages[0].name}: the data does not match its checksum\n" in ended.out
    assert f"{pages[1].name}: cut off: 18432 bytes, and the header says" in ended.out
    assert "notes.txt: does not have a page's name" in ended.out
    assert pages[0].exists()
    assert "--delete" in ended.out


def test_one_namespace_is_read_alone_and_an_unknown_one_is_refused(
    cli: Cli, pages: list[Path]
) -> None:
    _spoil(pages[0])
    digest = Story("two").namespace.hex()
    ended = cli("verify", digest[:12], "--format", "json")
    assert ended.code == 0
    document = json.loads(ended.out)
    assert document["good"]["pages"] == 2
    assert document["complete"] is True
    assert cli("verify", "0123456789").code == 1


def test_the_damaged_are_deleted_on_request_and_a_running_store_knows(
    cli: Cli, pages: list[Path], environment: dict[str, str]
) -> None:
    store = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert store.stdout is not None
    assert store.stdout.readline() == "ready\n"
    _spoil(pages[0])
    _spoil(pages[5])
    ended = cli("verify", "--delete", "--format", "json")
    assert ended.code == 1
    document = json.loads(ended.out)
    check_output("verify", document)
    assert document["deleted_pages"] == document["damaged"]["pages"] == 2
    assert document["good"]["pages"] == 10
    assert [page.exists() for page in (pages[0], pages[5], pages[1])] == [False, False, True]
    assert cli("verify").code == 0
    out, _ = store.communicate("\n", timeout=60)
    assert out == "10\n", "the store counts what is left, and no more"


def test_ctrl_c_says_how_far_it_came_and_it_goes_on_from_there(
    cli: Cli, pages: list[Path], environment: dict[str, str], tmp_path: Path
) -> None:
    # A megabyte would take a second.
    arguments = [sys.executable, "-m", "omlx_cache_daemon", "verify", "--rate", "40KB"]
    process = subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    # The first tenth was read.
    assert process.stderr.readline().startswith("verifying: ")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: the rest was not read; go on with --after " in out
    read = int(out.split()[0])
    assert 1 <= read < 12
    place = out.split("--after ")[1].strip()
    rest = json.loads(cli("verify", "--after", place, "--format", "json").out)
    assert rest["good"]["pages"] == 12 - read


def test_a_directory_that_is_not_there_is_said_to_be_missing(cli: Cli) -> None:
    ended = cli("verify")
    assert ended.code == 69
    assert "there is no cold directory" in ended.err
