"""CACHEDIR.TAG: backups that know it leave the cold directory out; nothing of ours touches it."""

from pathlib import Path

from kit.storage import Story, disk_usage, open_cold
from omlx_cache_daemon.changing import remove_namespace
from omlx_cache_storage.cold.catalog import namespaces, scan

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
