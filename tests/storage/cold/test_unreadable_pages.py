"""A page that cannot be read is left alone for a while and written again; so is a whole disk."""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, SetTime, Story, expected_payload, files_in, open_cold, read_cold
from kit.units import DAY
from omlx_cache_storage import breaker
from omlx_cache_storage.cold.disk import StrPath
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import PageUnreadable
from omlx_cache_storage.eviction.keep import NEVER_NS
from omlx_cache_storage.format.names import parse_name

PAGES = range(1, 13)


class BadSectors(FaultyDisk):
    """Refuses to open the pages in `bad`; a page that is written is sound again."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[int] = set()
        self.code = errno.EIO
        self.opened: list[int] = []
        self.each = {"open": self._open, "publish": self._written}

    def _open(self, path: StrPath) -> None:
        if name := parse_name(os.path.basename(path)):
            self.opened.append(name.position // 16)
            if self.opened[-1] in self.bad:
                raise OSError(self.code, os.strerror(self.code))

    def _written(self, temporary: StrPath, final: StrPath) -> None:
        if name := parse_name(os.path.basename(final)):
            self.bad.discard(name.position // 16)


@pytest.fixture
def disk() -> BadSectors:
    return BadSectors()


@pytest.fixture
def tier(tmp_path: Path, disk: BadSectors, story: Story, time: SetTime) -> ColdTier:
    """A tier with a dozen pages."""
    tier = open_cold(tmp_path, fs=disk)
    for number in PAGES:
        assert tier.write(story.page(number), DAY, story.document) == "written"
    return tier


def _is_right(tier: ColdTier, story: Story, number: int) -> bool:
    page = story.id(number)
    return read_cold(tier, page) == expected_payload(page, story.nbytes)


def _fail(tier: ColdTier, story: Story, number: int) -> None:
    with pytest.raises(PageUnreadable):
        read_cold(tier, story.id(number))


def _fail_three(tier: ColdTier, disk: BadSectors, story: Story) -> None:
    """Have the whole disk left alone."""
    disk.bad = {2, 3, 4}
    for number in (2, 3, 4):
        _fail(tier, story, number)


def _inode(tier: ColdTier, story: Story, number: int) -> int:
    key = story.id(number).key.hex()
    (path,) = files_in(tier.directory, f"{key}*.safetensors")
    return path.stat().st_ino


def test_a_page_that_cannot_be_read_is_absent_and_not_opened_for_a_growing_while(
    tier: ColdTier, disk: BadSectors, story: Story, time: SetTime
) -> None:
    disk.bad = {2}
    waited: list[float] = []
    for _ in range(12):
        _fail(tier, story, 2)
        assert tier.info(story.id(2)) is None
        assert tier.hidden(story.ids(2)) == {story.id(2): "unreadable"}
        readable, hidden = tier.find_all(story.ids(1, 2))
        assert (readable is not None, hidden) == (True, None)
        assert tier.hidden(story.ids(1, 2)) == {story.id(2): "unreadable"}
        assert _is_right(tier, story, 1)
        disk.opened.clear()
        _fail(tier, story, 2)
        assert disk.opened == [], "not asked again at once"
        seconds = 0
        while tier.info(story.id(2)) is None:
            time.pass_by(10)
            seconds += 10
        waited.append(seconds)
    assert waited[:4] == [30, 60, 120, 240]
    assert waited[-1] == waited[-2] == breaker.PAGE_BOUNDS[1]
    disk.bad = set()
    assert _is_right(tier, story, 2)
    assert tier.usage().state == "ok"
    assert not tier.hidden(story.ids(2))
    assert tier.hidden(story.ids(1, 2)) == {}


@pytest.mark.parametrize("seconds", [0, 10_000])
def test_a_page_that_cannot_be_read_is_named_as_lost_and_written_anew(
    tier: ColdTier, disk: BadSectors, story: Story, time: SetTime, seconds: int
) -> None:
    before = _inode(tier, story, 2)
    used = tier.usage().nbytes
    disk.bad = {2}
    _fail(tier, story, 2)
    assert tier.usage().state == "failing: Input/output error"
    assert tier.take_lost() == [(page, NEVER_NS) for page in story.ids(2)]
    assert tier.take_lost() == []
    time.pass_by(seconds)
    assert (tier.info(story.id(2)) is not None) == (seconds > 0), "when its pause is over"
    assert tier.write(story.page(1), DAY, story.document) == "present"
    assert tier.write(story.page(2), DAY, story.document) == "written"
    assert _inode(tier, story, 2) != before
    assert tier.info(story.id(2)) is not None
    assert _is_right(tier, story, 2)
    assert (tier.usage().nbytes, tier.usage().state) == (used, "ok")
    tier.check_integrity()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_process_without_descriptors_does_not_write_its_pages_anew(
    tier: ColdTier, disk: BadSectors, story: Story, code: int
) -> None:
    disk.bad, disk.code = {2}, code
    _fail(tier, story, 2)
    assert tier.usage().state == f"failing: {os.strerror(code)}"
    assert tier.info(story.id(2)) is not None
    assert tier.take_lost() == []
    assert tier.write(story.page(2), DAY, story.document) == "present"


def test_a_disk_that_fails_page_after_page_is_left_alone_and_then_tried_once_at_a_time(
    tier: ColdTier, disk: BadSectors, story: Story, time: SetTime
) -> None:
    disk.bad = set(PAGES)
    for number in PAGES:
        _fail(tier, story, number)
    assert disk.opened == [1, 2, 3]
    assert [tier.info(page) for page in story.ids(*PAGES)] == [None] * len(PAGES)
    assert tier.hidden(story.ids(*PAGES)) == dict.fromkeys(story.ids(*PAGES), "unreadable")
    assert not tier.hidden(story.ids(30))
    time.pass_by(breaker.FIRST_SECONDS)
    assert tier.info(story.id(9)) is not None
    disk.opened.clear()
    for number in (9, 10, 11):
        _fail(tier, story, number)
    assert disk.opened == [9], "one try, and then a longer pause"
    time.pass_by(breaker.FIRST_SECONDS)
    assert tier.info(story.id(10)) is None
    time.pass_by(breaker.FIRST_SECONDS)
    disk.bad = set()
    assert _is_right(tier, story, 10)
    assert _is_right(tier, story, 11)
    assert tier.usage().state == "ok"
    time.pass_by(100)
    assert all(_is_right(tier, story, number) for number in PAGES)


def test_a_read_that_ends_late_leaves_the_try_of_another_thread_alone(
    tier: ColdTier, disk: BadSectors, story: Story, time: SetTime
) -> None:
    """The first read began before the disk failed; while a try hangs nobody else may begin one."""
    began, ends, hangs, opened = (threading.Event() for _ in range(4))

    def read_late() -> None:
        with suppress(ZeroDivisionError), tier.reading(story.id(1)):
            began.set()
            ends.wait(30)
            raise ZeroDivisionError

    late = threading.Thread(target=read_late)
    late.start()
    assert began.wait(30)
    _fail_three(tier, disk, story)
    time.pass_by(breaker.FIRST_SECONDS)

    def open_late(path: StrPath, *, writing: bool = False) -> int:
        opened.set()
        hangs.wait(30)
        return FaultyDisk.open(disk, path, writing=writing)

    disk.open = open_late
    tried = threading.Thread(target=read_cold, args=(tier, story.id(5)))
    tried.start()
    assert opened.wait(30)
    ends.set()
    late.join(30)
    assert tier.info(story.id(6)) is None, "a second try beside the first"
    hangs.set()
    tried.join(30)
    assert tier.info(story.id(6)) is not None
