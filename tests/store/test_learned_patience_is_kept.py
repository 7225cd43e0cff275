"""What the eviction policy has learned outlives the process; a file that makes no sense does no
harm."""

import json
from pathlib import Path
from typing import Any

import pytest

from kit.storage import HandClock, Story, commit_to_disk, open_store
from omlx_cache.store import BlockStore
from omlx_cache_storage.cold.small_files import read_reuse
from omlx_cache_storage.eviction.keep import BUCKETS, Learned

PAGE = 4 * 1024
MOST_PATIENT = Learned((1.0,) * BUCKETS, 5000, 30.0)


def use(store: BlockStore, clock: HandClock, story: Story, times: int, gap: float = 20.0) -> None:
    """Have a chain of forty pages used again and again."""
    commit_to_disk(store, story, *range(1, 41))
    for _ in range(times):
        clock.pass_by(gap)
        store.touch(story.ids(*range(1, 41)))


@pytest.fixture(autouse=True)
def _used_before(tmp_path: Path) -> None:
    """A directory without a ledger may be one where a disk is mounted at other times."""
    (tmp_path / "ledger").touch(mode=0o600)


def patience(store: BlockStore) -> tuple[int, int]:
    return store.hot.patience_ns, store.cold.patience_ns


def test_a_store_that_opens_again_is_as_patient_as_the_one_before(tmp_path: Path) -> None:
    clock = HandClock()
    with open_store(tmp_path, clock=clock) as store:
        use(store, clock, Story(nbytes=PAGE), 96)
        learned = patience(store)
        assert min(learned) > 10e9
    with open_store(tmp_path, clock=clock) as store:
        assert patience(store) == learned
    assert read_reuse(tmp_path).memory is not None


def part(**fields: Any) -> dict[str, Any]:
    return {**MOST_PATIENT.document(), **fields}


def of_parts(**fields: Any) -> bytes:
    return json.dumps({"version": 1, "memory": part(**fields), "disk": part(**fields)}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff" * 300,
        b"[]",
        b"[" * 200_000,
        of_parts()[:200],
        of_parts() + b" " * (2 << 20),
        json.dumps({"version": 2, "memory": part(), "disk": part()}).encode(),
        json.dumps({"version": 1, "memory": [1], "disk": None}).encode(),
        json.dumps({"memory": part(), "disk": part()}).encode(),
        of_parts(version=0),
        of_parts(uses=[1.0]),
        of_parts(uses=["1"] * BUCKETS),
        of_parts(uses=[-1.0] * BUCKETS),
        of_parts(uses=[float("nan")] * BUCKETS),
        of_parts(uses=[10**400] * BUCKETS),
        of_parts(seen=-1),
        of_parts(seen=True),
        of_parts(seen=2.5),
        of_parts(seen=10**400),
        of_parts(patience_seconds=float("inf")),
        of_parts(patience_seconds=1e300),
        of_parts(patience_seconds=10**400),
        of_parts(patience_seconds="30"),
        of_parts(seen=1),
    ],
)
def test_a_file_that_makes_no_sense_teaches_nothing_and_is_replaced(
    tmp_path: Path, raw: bytes
) -> None:
    (tmp_path / "reuse.json").write_bytes(raw)
    (tmp_path / "reuse.json").chmod(0o600)
    clock = HandClock()
    with open_store(tmp_path, clock=clock) as store:
        assert patience(store) == (0, 0)
        use(store, clock, Story(nbytes=PAGE), 3)
    kept = read_reuse(tmp_path)
    assert kept.memory.seen in (120, 121)
