"""A page is as durable as the names above it: each new directory's parent is synced."""

from pathlib import Path

from kit.storage import Story
from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.tier import ColdTier


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
    tier = ColdTier(cold, 2**30, durability="fsync", fs=disk)
    tier.open()
    assert set(disk.synced) == {
        (directory, "fsync") for directory in (tmp_path, tmp_path / "new", tmp_path / "new/newer")
    }


def test_every_directory_above_a_written_page_is_synced(tmp_path: Path) -> None:
    disk, story = NamesDisk(), Story()
    tier = ColdTier(tmp_path / "cold", 2**30, durability="fsync", fs=disk)
    tier.open()
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    (page,) = (tmp_path / "cold").rglob("*.safetensors")
    above = {directory for directory in page.parents if directory.is_relative_to(tmp_path)}
    assert {directory for directory, _ in disk.synced} >= above
