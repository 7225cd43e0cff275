"""What a power cut may leave; `qa.flushes` has stores restore from that."""

import random
from pathlib import Path

from qa.chaos.power import Disk, Operation

ROOT = Path("/cache")


def _left(operations: list[Operation], target: Path, seed: int) -> set[str]:
    disk = Disk(ROOT)
    disk.replay(operations, None)
    directory = target / str(seed)
    disk.materialise(directory, random.Random(seed))
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def _written(*, synced: bool, named: bool) -> list[Operation]:
    directory = ROOT / "cold"
    steps = [
        Operation("mkdir", directory),
        Operation("sync directory", ROOT),
        Operation("write", directory / "tmp", data=b"page", synced=synced),
        Operation("rename", directory / "tmp", directory / "page"),
    ]
    return [*steps, Operation("sync directory", directory)] if named else steps


def test_what_was_synced_and_named_survives_every_cut(tmp_path: Path) -> None:
    done = _written(synced=True, named=True)
    assert all(_left(done, tmp_path, seed) == {"cold/page"} for seed in range(40))


def test_a_name_that_was_not_synced_may_be_lost_and_is_never_half_there(tmp_path: Path) -> None:
    done = _written(synced=True, named=False)
    found = [_left(done, tmp_path, seed) for seed in range(80)]
    assert {frozenset(names) for names in found} >= {frozenset({"cold/page"}), frozenset()}
    assert all(len(names) <= 1 for names in found)


def test_bytes_that_were_not_synced_may_be_others(tmp_path: Path) -> None:
    done = _written(synced=False, named=True)
    for seed in range(80):
        _left(done, tmp_path, seed)
    contents = {(tmp_path / f"{seed}/cold/page").read_bytes() for seed in range(80)}
    assert len(contents) > 2
