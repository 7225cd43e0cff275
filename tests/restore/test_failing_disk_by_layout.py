"""Whatever a disk does to the pages of any kind of model: a handful of tries, one miss, and the
next commit writes the pages anew."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit import zoo
from kit.drive import chunks, random_tokens, request, run, same, settings
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
    """Fails at one step of reading: `open`, `header` or `payload`, for the files that are `sick`.

    What is written again is sound.
    """

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

    def publish(self, temporary: StrPath, final: StrPath) -> None:
        super().publish(temporary, final)
        self.sick.discard(os.path.basename(final))


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


@pytest.mark.parametrize("step", some(STEPS, "header"))
def test_one_bad_page_is_written_anew_by_the_request_that_met_it(
    model: Any, cold: PrefixCache, disk: SickDisk, step: str
) -> None:
    """The root: every kind of model computes it again."""
    roots = [e.path for e in _pages(cold) if e.info.position == BLOCK and e.page.group == "paged"]
    disk.sick = {path.name for path in roots}
    disk.sick_at = step
    turn = request(model, cold, PROMPT, step=BLOCK)
    assert (turn.cached, turn.reason) == (0, "unreadable")
    assert cold.store.flush(60)
    assert disk.sick == set()
    cold.store.hot.discard([entry.page for entry in cold.store.listing()])
    again = request(model, cold, PROMPT, step=BLOCK)
    assert (again.cached, again.reason) == (len(PROMPT) - 1, None)
    assert same(again.logits, run(model, [*chunks(PROMPT[:-1], BLOCK), PROMPT[-1:]]))


def _pages(cache: PrefixCache) -> Any:
    return cache.store.cold.listing()


@pytest.mark.parametrize("damage", ["header", "short"])
def test_a_disk_full_of_damaged_files_is_one_miss_and_a_handful_of_tries(
    model: Any, cold: PrefixCache, disk: SickDisk, damage: str
) -> None:
    for entry in _pages(cold):
        with open(entry.path, "r+b") as file:
            if damage == "header":
                file.write(b"\xff" * 64)
            else:
                file.truncate(20)
    turn = request(model, cold, PROMPT, step=BLOCK, commit=False)
    assert (turn.cached, turn.reason) == (0, "corrupt")
    assert 0 < sum(disk.opened.values()) <= HANDFUL
    assert dict(cold.store.stats().requests.misses) == {"corrupt": 1}


@pytest.mark.parametrize("step", some(STEPS, "open"))
def test_a_restore_that_was_begun_ends_after_a_handful_of_tries(
    model: Any, cold: PrefixCache, disk: SickDisk, step: str
) -> None:
    disk.sick_at = step
    for _ in range(3):
        begun = cold.begin(PROMPT)
        assert begun.wait(30)
        with cold.session(PROMPT, begun=begun) as session:
            assert (session.cached_tokens, session.miss_reason) == (0, "unreadable")
    assert 0 < sum(disk.opened.values()) <= HANDFUL
    assert dict(cold.store.stats().requests.misses) == {"unreadable": 3}
