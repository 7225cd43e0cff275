"""A page is as durable as its bytes and the names above it: all are synced, each in its turn."""

import os
from pathlib import Path

from kit.storage import FaultyDisk, Story, open_cold


def test_the_names_of_the_cold_directory_and_its_new_parents_are_synced(tmp_path: Path) -> None:
    disk, synced = FaultyDisk(), set[tuple[Path, str]]()
    disk.each["sync_directory"] = lambda path, how: synced.add((Path(path), how))
    cold = tmp_path / "new" / "newer" / "cold"
    open_cold(cold, durability="fsync", fs=disk, parents=True)
    assert synced == {
        (directory, "fsync") for directory in (tmp_path, tmp_path / "new", tmp_path / "new/newer")
    }


def test_every_name_above_a_written_page_is_synced_before_the_page_has_its_own(
    tmp_path: Path,
) -> None:
    disk, story, steps = FaultyDisk(), Story(), list[Path]()
    disk.each["sync_directory"] = lambda path, _: steps.append(Path(path))
    disk.each["publish"] = lambda _, final: steps.append(Path(final))
    tier = open_cold(tmp_path / "cold", durability="fsync", fs=disk)
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    (page,) = (tmp_path / "cold").rglob("*.safetensors")
    assert {*steps} >= {above for above in page.parents if above.is_relative_to(tmp_path)}
    document = page.parents[1] / "namespace.json"
    assert document.parent in steps[steps.index(document) : steps.index(page)]


def test_a_files_bytes_are_synced_before_it_has_its_name(tmp_path: Path) -> None:
    disk, story, synced, published = FaultyDisk(), Story(), set[int](), dict[str, bool]()

    def publish(temporary: str, final: str) -> None:
        published[os.path.basename(final)] = os.stat(temporary).st_ino in synced

    disk.each["publish"] = publish
    disk.each["sync"] = lambda fd, how: how == "fsync" and synced.add(os.fstat(fd).st_ino)
    tier = open_cold(tmp_path / "cold", durability="fsync", fs=disk)
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    (page,) = (tmp_path / "cold").rglob("*.safetensors")
    assert published[page.name]
    assert published["namespace.json"]
