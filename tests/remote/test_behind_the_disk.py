"""Memory, disk and other machines together: who holds more is read, and who is to blame is left."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kit.remote import MemoryEngine, MemoryStore
from kit.storage import Story, open_cold, read_cold
from omlx_cache_storage.eviction.keep import Clock
from omlx_cache_storage.hot_page import WRITE_POLICIES
from omlx_cache_storage.page import COLD, REMOTE, Page, Placed
from omlx_cache_storage.remote.engine import RemoteOptions
from omlx_cache_storage.remote.tier import RemoteTier
from omlx_cache_storage.tiers import Tiers

STORY = Story(nbytes=4096)
GROUP = "window64keep0"
SECONDS = 30.0


class _TwoMachines:
    """Tiers of a machine, and another machine's way to the store behind them."""

    def __init__(self, directory: Path, policy: str) -> None:
        store = MemoryStore()
        options = RemoteOptions("", "cpu", lookup_seconds=SECONDS, read_seconds=SECONDS)
        self.remote, self.other = (
            RemoteTier(MemoryEngine(store), options, engine_name="", where="") for _ in range(2)
        )
        clock = Clock()
        cold = open_cold(directory, 1 << 24, clock=clock)
        self.tiers = Tiers(
            hot_bytes=1 << 20,
            queue_bytes=1 << 20,
            policy=WRITE_POLICIES[policy],
            clock=clock,
            cold=cold,
            documents=lambda digest: STORY.document,
            remote=self.remote,
        )

    def store_here(self, page: Page) -> None:
        """Have a page on the disk, and not in memory."""
        room = self.tiers.admit(page.meta.nbytes)
        assert room
        assert self.tiers.put(page, room)
        assert self.tiers.flush(SECONDS)
        self.tiers.hot.discard([page.meta.id])

    def store_there(self, page: Page) -> None:
        """Have another machine write a page, and this one know of it."""
        assert self.other.store.write(page) == "written"
        assert self.remote.store.present([Placed(page.meta.namespace, page.meta.id)]) != [None]


@pytest.fixture
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[_TwoMachines]:
    made = _TwoMachines(tmp_path, getattr(request, "param", "through"))
    yield made
    assert made.tiers.stop_writing(SECONDS)
    assert made.remote.close(SECONDS)
    assert made.other.close(SECONDS)


@pytest.mark.parametrize("rig", ["lazy"], indirect=True)
def test_a_page_that_nobody_has_asked_for_evicts_none_that_the_disk_lacks(
    rig: _TwoMachines,
) -> None:
    far, *here = (STORY.page(number) for number in range(1, 5))
    rig.store_there(far)
    rig.tiers.hot.allow(3 * far.meta.nbytes)
    for page in here:
        assert rig.tiers.put(page, rig.tiers.admit(page.meta.nbytes))
    assert not rig.tiers.reserve(far.meta.nbytes, far.meta.id, prepared=True)
    assert len(rig.tiers.hot.entries()) == 3
    assert rig.tiers.flush(SECONDS)
    with rig.tiers.reserve(far.meta.nbytes, far.meta.id, prepared=True) as room:
        assert room
    assert len(rig.tiers.hot.entries()) == 2


def test_a_page_of_which_other_machines_have_more_is_read_from_there(rig: _TwoMachines) -> None:
    whole = STORY.page(1, group=GROUP)
    half = replace(STORY.meta(1, group=GROUP, held=8, nbytes=2048))
    rig.store_here(Page(half, whole.payload[:2048]))
    rig.store_there(whole)
    page = whole.meta.id
    (found,) = rig.tiers.find_all([page])
    assert rig.tiers.find(page) == found
    assert (found.tier, found.held) == (REMOTE, 16)
    here = rig.tiers.find(page, here=True)
    assert (here.tier, here.held) == (COLD, 8)
    assert read_cold(rig.tiers, page) == whole.payload
    room = rig.tiers.reserve(whole.meta.nbytes, page)
    assert room
    assert rig.tiers.put(whole, room)
    assert rig.tiers.flush(SECONDS)
    rig.tiers.hot.discard([page])
    here = rig.tiers.find(page)
    assert (here.tier, here.held) == (COLD, 16)


def test_a_page_that_was_spoilt_here_alone_is_had_from_other_machines(rig: _TwoMachines) -> None:
    page = STORY.page(1)
    rig.store_here(page)
    rig.store_there(page)
    assert rig.tiers.find(page.meta.id) == rig.tiers.find(page.meta.id, here=True)
    rig.tiers.forget(page.meta.id)
    assert rig.tiers.find(page.meta.id, here=True) is None
    assert read_cold(rig.tiers, page.meta.id) == page.payload
