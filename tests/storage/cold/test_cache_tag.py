"""CACHEDIR.TAG: backups that know it leave the cold directory out; nothing of ours touches it."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, disk_usage, files_in, open_cold
from omlx_cache_daemon.changing import remove_namespace
from omlx_cache_storage.cold.catalog import namespaces, scan
from omlx_cache_storage.cold.disk import Durability, StrPath
from omlx_cache_storage.page import Buffer

SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
DAY = 10**18


def test_a_cold_directory_is_tagged_as_a_cache_and_the_tag_counts(tmp_path: Path) -> None:
    cold, story = tmp_path / "cold", Story()
    tier = open_cold(cold)
    tag = cold / "CACHEDIR.TAG"
    assert not tag.exists(), "whoever opens a store waits for no write"
    assert tier.write(story.page(1), DAY, story.document) == "written"
    assert tag.read_bytes().startswith(SIGNATURE + b"\n")
    assert tag.stat().st_mode & 0o777 == 0o600
    assert disk_usage(cold) <= tier.usage().nbytes
    again = open_cold(cold)
    assert again.usage().nbytes == tier.usage().nbytes
    assert again.usage().pages == 1


def test_a_directory_of_before_is_tagged_with_the_next_page(tmp_path: Path) -> None:
    story = Story()
    with contextlib.closing(open_cold(tmp_path)) as before:
        assert before.write(story.page(1), DAY, story.document) == "written"
    (tmp_path / "CACHEDIR.TAG").unlink()
    tier = open_cold(tmp_path)
    assert tier.write(story.page(2), DAY, story.document) == "written"
    assert (tmp_path / "CACHEDIR.TAG").exists()
    assert disk_usage(tmp_path) <= tier.usage().nbytes


def test_a_tag_that_was_there_is_left_alone(tmp_path: Path) -> None:
    tag = tmp_path / "CACHEDIR.TAG"
    tag.write_bytes(SIGNATURE + b"\n# mine\n")
    inode = tag.stat().st_ino
    tier = open_cold(tmp_path)
    assert tag.read_bytes() == SIGNATURE + b"\n# mine\n"
    assert tag.stat().st_ino == inode
    assert disk_usage(tmp_path) <= tier.usage().nbytes


def test_neither_eviction_nor_deletion_nor_a_listing_sees_the_tag(tmp_path: Path) -> None:
    story = Story()
    tier = open_cold(tmp_path)
    assert tier.write(story.page(1), DAY, story.document) == "written"
    assert len(namespaces(tmp_path)) == len(list(scan(tmp_path))) == 1
    assert remove_namespace(tmp_path, story.namespace).pages == 1
    tier._index.limit_bytes = 0
    tier.settle()
    tier.close()
    assert open_cold(tmp_path, 0).limit_bytes == 0
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["CACHEDIR.TAG", "budget.json", "ledger"]


def test_a_disk_that_takes_no_tag_takes_pages_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, disk = Story(), FaultyDisk()
    write = disk.write

    def no_tag(path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        if str(path).endswith("TAG"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return write(path, pieces, durability)

    monkeypatch.setattr(disk, "write", no_tag)
    tier = open_cold(tmp_path, fs=disk)
    assert tier.write(story.page(1), DAY, story.document) == "written"
    assert tier.usage().state == "ok"
    assert len(files_in(tmp_path)) == 1


@pytest.mark.skipif(not os.path.exists("/bin/tar"), reason="needs GNU tar")
def test_a_backup_that_knows_the_tag_leaves_the_pages_out(tmp_path: Path) -> None:
    story = Story()
    assert open_cold(tmp_path / "cold").write(story.page(1), DAY, story.document) == "written"
    command = [
        "tar",
        "-C",
        str(tmp_path),
        "--exclude-caches",
        "-cf",
        str(tmp_path / "b.tar"),
        "cold",
    ]
    subprocess.run(command, check=True, capture_output=True)
    listed = subprocess.run(
        ["tar", "-tf", str(tmp_path / "b.tar")], check=True, capture_output=True, text=True
    )
    assert "CACHEDIR.TAG" in listed.stdout
    assert ".safetensors" not in listed.stdout
