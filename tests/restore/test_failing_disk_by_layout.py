"""Whatever a disk does to the pages of any kind of model: a handful of tries, and one miss."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit import zoo
from kit.drive import random_tokens, request, settings
from kit.examples import some
from kit.restoring import DENSE, HYBRID, WINDOWED, PagedDisk
from kit.storage import SetTime
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.cold.disk import StrPath

PROMPT = random_tokens(400, 1)
BLOCK = 16
HANDFUL = 8
FAMILIES = (DENSE, WINDOWED, HYBRID)
STEPS = ["open", "header", "payload"]


class SickDisk(PagedDisk):
    """Fails at one step of reading the `sick` files: `open`, `header` or `payload`."""

    def __init__(self) -> None:
        super().__init__()
        self.sick_at = ""
        self.sick: set[str] = set()
        self._names: dict[int, str] = {}

    def mark(self, directory: Path) -> None:
        self.sick = {path.name for path in directory.rglob("*.safetensors")}

    def _check(self, step: str, name: str) -> None:
        if self.sick_at == step and name in self.sick:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: StrPath) -> int:
        fd = super().open(path)
        self._names[fd] = os.path.basename(path)
        try:
            self._check("open", self._names[fd])
        except OSError:
            os.close(fd)
            raise
        return fd

    def read(self, fd: int, length: int, offset: int) -> bytes:
        self._check("header", self._names[fd])
        return super().read(fd, length, offset)

    def read_into(self, fd: int, offset: int, buffers: Sequence[Any]) -> int:
        self._check("payload", self._names[fd])
        return super().read_into(fd, offset, list(buffers))


@pytest.fixture(params=some(FAMILIES, HYBRID))
def model(request: pytest.FixtureRequest) -> Any:
    return zoo.build(request.param)


@pytest.fixture
def disk() -> SickDisk:
    return SickDisk()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    return SetTime(monkeypatch)


def _open(directory: Path, disk: SickDisk, **fields: Any) -> BlockStore:
    return BlockStore(
        settings(directory, block_size=BLOCK, snapshot_stride=2 * BLOCK, **fields), filesystem=disk
    )


@pytest.fixture
def cold(model: Any, tmp_path: Path, disk: SickDisk) -> Iterator[PrefixCache]:
    """A cache of 25 blocks and more, all on the disk."""
    with _open(tmp_path, disk) as store:
        request(model, PrefixCache(model, store), PROMPT)
        assert store.flush(60)
    disk.mark(tmp_path)
    with _open(tmp_path, disk) as store:
        yield PrefixCache(model, store)


@pytest.mark.parametrize("step", some(STEPS, "open", "payload"))
def test_a_whole_disk_that_fails_is_one_miss_and_a_handful_of_tries(
    cold: PrefixCache, disk: SickDisk, time: SetTime, step: str
) -> None:
    disk.sick_at = step
    for _ in range(6):
        with cold.session(PROMPT) as session:
            assert (session.cached_tokens, session.miss_reason) == (0, "unreadable")
        assert 0 < sum(disk.opened.values()) <= HANDFUL, "and then the disk is left alone"
    assert dict(cold.store.stats().requests.misses) == {"unreadable": 6}
    state = cold.store.stats().cold
    assert state.state == "failing: Input/output error"
    disk.sick_at = ""
    time.pass_by(3600)
    with cold.session(PROMPT) as session:
        assert (session.cached_tokens, session.miss_reason) == (len(PROMPT) - 1, None)
