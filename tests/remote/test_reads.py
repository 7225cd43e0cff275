"""Who reads a page of a remote store is told in time when nothing comes, and holds no other up."""

import threading
from collections.abc import Callable, Iterator

import pytest

from kit.remote import MemoryEngine
from kit.storage import Story, read_cold
from omlx_cache_storage import errors
from omlx_cache_storage.errors import PageUnreadable
from omlx_cache_storage.io_threads import note_answer
from omlx_cache_storage.page import Placed
from omlx_cache_storage.remote.engine import Part, RemoteOptions
from omlx_cache_storage.remote.tier import HANGING, RemoteTier

DEADLINE = 60.0
STORY = Story()
PAGES = 4


class _Rig(RemoteTier):
    """A tier on a store with some pages that it knows of; `each` is called with the number of each
    that is read."""

    def __init__(self, *, connections: int = 4, read_seconds: float = DEADLINE) -> None:
        self.engine = MemoryEngine()
        self.each: Callable[[int], object] = lambda number: None
        options = RemoteOptions("", "cpu", read_seconds=read_seconds, connections=connections)
        super().__init__(self.engine, options, engine_name="memory", where="")
        self.numbers: dict[str, int] = {}
        for number in range(1, PAGES + 1):
            page = STORY.page(number)
            assert self.store.write(page) == "written"
            name = self.store.names.page(*Placed(page.meta.namespace, page.meta.id))
            self.numbers[name] = number
        self.engine.each["read"] = self._begun

    def _begun(self, parts: list[Part]) -> None:
        self.each(self.numbers[parts[0].name])

    def take(self, number: int) -> bytes:
        return read_cold(self, STORY.id(number))


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[_Rig]:
    """A rig with the test's options."""
    rig = _Rig(**request.param)
    yield rig
    assert rig.close(DEADLINE)
    assert rig.usage().held_bytes == 0


@pytest.mark.parametrize("rig", [{"read_seconds": 0.05, "connections": 2}], indirect=True)
def test_threads_that_hang_are_bounded_and_others_take_their_place(rig: _Rig) -> None:
    with rig.engine.hanging("read"):
        for _ in range(12):
            with pytest.raises(PageUnreadable):
                rig.take(1)
            # Else nobody would read after the first.
            rig.store.back_off.succeeded(read=True)
        threads = [t for t in threading.enumerate() if t.name.startswith("omlx-cache-remote-read")]
        assert 2 < len(threads) <= 2 * (1 + HANGING)
        assert rig.engine.calls["read"] <= 2 * (1 + HANGING)


@pytest.mark.parametrize("rig", [{"read_seconds": 1.5}], indirect=True)
def test_a_large_value_that_comes_slowly_is_waited_for_and_one_that_brings_nothing_is_not(
    rig: _Rig,
) -> None:
    def slowly(number: int) -> None:
        for _ in range(6):
            if number == 1:
                note_answer()
            threading.Event().wait(0.4)

    rig.each = slowly
    assert rig.take(1) == bytes(STORY.page(1).payload)
    assert rig.usage().errors == {}
    with pytest.raises(PageUnreadable, match=errors.REMOTE_TIMEOUT):
        rig.take(2)
