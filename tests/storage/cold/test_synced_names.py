"""A page is as durable as its bytes and the names above it: all are synced, each in its turn."""

import os
from pathlib import Path

from kit.storage import Story, open_cold
from omlx_cache_storage.cold.disk import Durability, FileSystem, StrPath


class NamesDisk(FileSystem):
    """Remembers which directories were synced, and how."""

    def __init__(self) -> None:
        self.synced: list[tuple[Path, Durability]] = []

    def sync_directory(self, path: Path, durability: Durability) -> None:
        super().sync_directory(path, durability)
        self.synced.append((Path(path), durability))


def test_the_names_of_the_cold_directory_and_its_new_parents_are_synced(tmp_path: Path) -> None:
    disk = NamesDisk()
    cold = tmp_path / "new" / "newer" / "cold"
    open_cold(cold, durability="fsync", fs=disk, parents=True)
    assert set(disk.synced) == {
        (directory, "fsync") for directory in (tmp_path, tmp_path / "new", tmp_path / "new/newer")
    }


def test_every_directory_above_a_written_page_is_synced(tmp_path: Path) -> None:
    disk, story = NamesDisk(), Story()
    tier = open_cold(tmp_path / "cold", durability="fsync", fs=disk)
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    (page,) = (tmp_path / "cold").rglob("*.safetensors")
    above = {directory for directory in page.parents if directory.is_relative_to(tmp_path)}
    assert {directory for directory, _ in disk.synced} >= above


class BytesDisk(FileSystem):
    """Remembers which files were synced before they got their names, and which were not."""

    def __init__(self) -> None:
        self.synced: set[int] = set()
        self.published: dict[str, bool] = {}

    def sync(self, fd: int, durability: Durability) -> None:
        super().sync(fd, durability)
        if durability == "fsync":
            self.synced.add(os.fstat(fd).st_ino)

    def publish(self, temporary: StrPath, final: StrPath) -> None:
        self.published[Path(final).name] = os.stat(temporary).st_ino in self.synced
        super().publish(temporary, final)


def test_a_files_bytes_are_synced_before_it_has_its_name(tmp_path: Path) -> None:
    disk, story = BytesDisk(), Story()
    tier = open_cold(tmp_path / "cold", durability="fsync", fs=disk)
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    (page,) = (tmp_path / "cold").rglob("*.safetensors")
    assert disk.published[page.name]
    assert disk.published["namespace.json"]
