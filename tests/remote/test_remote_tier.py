"""What one machine writes another one finds and reads, and every fault of the store is a miss."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kit.remote import MemoryEngine, MemoryStore
from kit.remote.asking import inquiry
from kit.remote.processes import until
from kit.storage import Story, read_cold
from omlx_cache_storage import breaker, errors
from omlx_cache_storage.breaker import FAILURES
from omlx_cache_storage.errors import (
    CorruptPage,
    PageUnreadable,
)
from omlx_cache_storage.events import EventLog
from omlx_cache_storage.page import PageId, Placed
from omlx_cache_storage.remote.engine import RemoteError, RemoteOptions, Trouble
from omlx_cache_storage.remote.lookups import Asked
from omlx_cache_storage.remote.tier import RemoteTier

BLOCK = 16
DEADLINE = 60.0
SECRET = b"a secret of these tests"
OPTIONS = RemoteOptions(
    "redis://somewhere", "cpu", secret=SECRET, lookup_seconds=DEADLINE, read_seconds=DEADLINE
)
STORY = Story()


class _Machine(RemoteTier):
    """A tier on an engine in memory, and a few ways to use it."""

    def __init__(self, engine: MemoryEngine, options: RemoteOptions = OPTIONS) -> None:
        self.engine = engine
        self.now = 1000.0
        self.log = EventLog()
        super().__init__(
            engine,
            options,
            engine_name="memory",
            where="memory",
            events=self.log,
            clock=lambda: self.now,
        )

    def about(
        self, blocks: int, story: Story = STORY, timeout: float | None = None, length: int = 0
    ) -> Asked:
        """Ask what there is of a story."""
        return self.ask(inquiry(story, blocks, length=length), timeout)

    def get(self, page: PageId) -> bytes:
        return read_cold(self, page)

    def ask_again(self) -> None:
        """Let the time pass for which the store is left alone."""
        self.store.back_off._breaker.ask_again()
        assert self.resting == ""

    def has(self, *numbers: int, story: Story = STORY) -> list[bool]:
        return [info is not None for info in self.find_all(story.ids(*numbers))]


Machines = Callable[..., _Machine]


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """Makes machines with one store, which is left alone until `ask_again`."""
    monkeypatch.setattr(breaker, "FIRST_SECONDS", 2 * DEADLINE)
    monkeypatch.setattr(breaker, "LONGEST_SECONDS", 2 * DEADLINE)
    store = MemoryStore()
    made: list[_Machine] = []

    def make(
        options: RemoteOptions = OPTIONS, *, part_bytes: int | None = 8 << 20, **changes: object
    ) -> _Machine:
        engine = MemoryEngine(store, part_bytes=part_bytes)
        made.append(_Machine(engine, replace(options, **changes)))
        return made[-1]

    yield make
    for machine in made:
        assert machine.close(DEADLINE)
        assert machine.usage().held_bytes == 0


def _write(machine: _Machine, *numbers: int) -> None:
    for page in STORY.pages(*numbers):
        assert machine.store.write(page) == "written"


# What one writes, the other finds.


@pytest.mark.parametrize("part_bytes", [8 << 20, 1000, None])
@pytest.mark.parametrize("encrypts", [False, True])
def test_another_machine_finds_and_reads_what_one_wrote(
    machines: Machines, part_bytes: int | None, encrypts: bool
) -> None:
    one, two = (machines(part_bytes=part_bytes, encrypts=encrypts) for _ in range(2))
    _write(one, 1, 2, 3)
    assert two.has(1, 2, 3) == [False] * 3
    assert two.about(5) == Asked(news=True)
    assert two.has(1, 2, 3, 4) == [True, True, True, False]
    for page in STORY.pages(1, 2, 3):
        assert two.get(page.meta.id) == page.payload
    usage = two.usage()
    assert (usage.read_pages, usage.found_pages, usage.bad_pages) == (3, 3, 0)
    assert usage.read_bytes == one.usage().written_bytes > 3 * 4096
    assert usage.lookup_phases <= 3


def test_a_tail_is_found_by_whoever_has_the_same_prompt(machines: Machines) -> None:
    one, two = machines(), machines()
    _write(one, 1)
    tail = STORY.page(2, tail=5)
    assert one.store.write(tail) == "written"
    assert two.about(1, length=2 * BLOCK - 5).news
    assert two.find_all([tail.meta.id])[0] is not None
    assert two.get(tail.meta.id) == tail.payload


# Asking, and its deadline.


def test_a_look_up_that_is_late_costs_its_deadline_and_becomes_known_all_the_same(
    machines: Machines,
) -> None:
    # Long enough that the engine is asked before the deadline, on a busy machine too.
    one, two = machines(), machines(lookup_seconds=2.0)
    _write(one, 1, 2)
    with two.engine.hanging("look"):
        began = time.monotonic()
        assert two.about(2) == Asked(False, errors.REMOTE_TIMEOUT)
        assert time.monotonic() - began < DEADLINE / 2
        # Who asks the same again is not held up once more.
        assert two.about(2).trouble in (errors.REMOTE_TIMEOUT, errors.REMOTE_RESTING)
        assert two.usage().late_lookups == 1
    until(lambda: two.has(1, 2) == [True, True])
    assert two.usage().state == "ok"


@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        ("refused", errors.REMOTE_UNREACHABLE),
        ("lost", errors.REMOTE_UNREACHABLE),
        ("timeout", errors.REMOTE_TIMEOUT),
        ("auth", errors.REMOTE_DENIED),
        ("throttled", errors.REMOTE_THROTTLED),
        ("full", errors.REMOTE_FAILED),
        ("error", errors.REMOTE_FAILED),
    ],
)
def test_a_store_that_refuses_is_a_miss_with_a_reason_then_left_alone_then_used_again(
    machines: Machines, trouble: Trouble, word: str
) -> None:
    one, two = machines(), machines()
    _write(one, 1, 2)
    two.engine.fail["*"] = trouble
    assert [two.about(2).trouble for _ in range(FAILURES + 1)] == [word] * FAILURES + [
        errors.REMOTE_RESTING
    ]
    assert two.usage().errors == {word: FAILURES}
    looks = two.engine.calls["look"]
    for _ in range(5):
        assert two.about(2) == Asked(False, errors.REMOTE_RESTING)
    assert two.engine.calls["look"] == looks
    two.engine.fail.clear()
    two.ask_again()
    assert two.about(2) == Asked(news=True)
    assert two.get(STORY.id(1)) == STORY.page(1).payload
    kinds = [(event.kind, event.tier) for event in two.log.page(0, 9).events]
    assert kinds[:2] == [("failed", "remote"), ("resynced", "remote")]


def test_pages_of_a_store_that_is_left_alone_are_not_found_and_it_is_said_why(
    machines: Machines,
) -> None:
    one = machines(read_seconds=0.05)
    _write(one, 1, 2)
    tail = STORY.page(3, tail=5)
    assert one.store.write(tail) == "written"
    with one.engine.hanging("read", "ping"):
        with pytest.raises(PageUnreadable, match=errors.REMOTE_TIMEOUT):
            one.get(STORY.id(1))
        # A read that stalled is enough.
        assert one.has(1, 2) == [False, False]
        assert one.tails_of([tail.meta.parent]) == set()
        assert one.hidden(STORY.ids(1, 2, 5)) == dict.fromkeys(
            STORY.ids(1, 2), errors.REMOTE_RESTING
        )
        reads = one.engine.calls["read"]
        with pytest.raises(PageUnreadable, match=errors.REMOTE_RESTING):
            one.get(STORY.id(1))
        with pytest.raises(RemoteError, match="backs off"):
            one.store.write(STORY.page(4))
        with pytest.raises(RemoteError, match="backs off"):
            one.store.present([Placed(STORY.namespace, STORY.id(4))])
        assert one.engine.calls["read"] == reads
        assert one.engine.calls["write"] == 3
    one.ask_again()
    assert one.has(1, 2) == [True, True]
    assert one.get(STORY.id(1)) == STORY.page(1).payload
    assert one.usage().late_reads == 1
    assert one.hidden(STORY.ids(1, 2)) == {}


# Reading, and what may be there instead.


def test_a_page_evicted_between_look_up_and_read_is_a_miss_and_asked_for_again(
    machines: Machines,
) -> None:
    one, two = machines(), machines()
    _write(one, 1, 2, 3)
    two.about(3)
    one.engine.store.evict(STORY.id(2).key.hex())
    assert two.get(STORY.id(1)) == STORY.page(1).payload
    with pytest.raises(PageUnreadable, match=errors.REMOTE_LOST):
        two.get(STORY.id(2))
    assert two.has(1, 2, 3) == [True, False, True]
    assert two.hidden(STORY.ids(2)) == {STORY.id(2): errors.REMOTE_LOST}
    assert (two.usage().lost_pages, two.usage().bad_pages, two.resting) == (1, 0, "")
    _write(one, 2)
    two.now += 1.1
    assert two.about(3).news
    assert two.get(STORY.id(2)) == STORY.page(2).payload


@pytest.mark.parametrize("part_bytes", [8 << 20, 1000, None])
@pytest.mark.parametrize("sizes", [(4096, 9000), (9000, 4096)])
def test_of_a_page_that_was_replaced_the_new_one_comes_and_is_known(
    machines: Machines, part_bytes: int | None, sizes: tuple[int, int]
) -> None:
    one, two = machines(part_bytes=part_bytes), machines(part_bytes=part_bytes)
    before, after = sizes
    assert one.store.write(STORY.page(1, nbytes=before, held=8)) == "written"
    two.about(1)
    page = STORY.page(1, nbytes=after)
    assert one.store.write(page) == "written"
    assert two.get(STORY.id(1)) == page.payload
    (info,) = two.find_all(STORY.ids(1))
    assert (info.held, info.nbytes) == (BLOCK, after)
    assert two.usage().bad_pages == 0


def _flip(at: int) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:at] + bytes([raw[at] ^ 1]) + raw[len(raw[:at]) + 1 :]


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_damaged_page_is_a_miss_is_counted_and_is_mended_by_who_computes_it(
    machines: Machines, secret: bytes | None
) -> None:
    one, two = machines(secret=secret), machines(secret=secret)
    _write(one, 1, 2)
    two.about(2)
    name = two.store.names.page(STORY.namespace, STORY.id(2))
    one.engine.store.change(name, _flip(-9))
    with pytest.raises(CorruptPage):
        two.get(STORY.id(2))
    two.now += 30
    two.about(2)
    assert two.has(1, 2) == [True, False]
    assert two.hidden(STORY.ids(1, 2)) == {STORY.id(2): "corrupt"}
    usage = two.usage()
    assert (usage.bad_pages, usage.lost_pages, two.resting) == (1, 0, "")
    # It stays where it is until somebody has a better one.
    assert name in one.engine.store.values
    assert two.store.write(STORY.page(2)) == "written"
    assert two.get(STORY.id(2)) == STORY.page(2).payload
    assert two.hidden(STORY.ids(2)) == {}


def test_a_stranger_without_the_secret_plants_nothing_and_destroys_nothing(
    machines: Machines,
) -> None:
    ours, stranger = machines(), machines(secret=b"what a stranger made up")
    _write(ours, 1)
    assert stranger.about(1) == Asked(False, errors.REMOTE_FOREIGN)
    assert stranger.hidden(STORY.ids(1, 2)) == {STORY.id(1): errors.REMOTE_FOREIGN}
    assert stranger.usage().bad_pages == 1
    assert stranger.store.write(STORY.page(1)) == "refused"
    assert stranger.store.present([Placed(STORY.namespace, STORY.id(1))]) == [None]
    assert stranger.store.write(STORY.page(2)) == "written"
    ours.now += 2
    ours.about(2)
    assert ours.has(1, 2) == [True, False]
    assert ours.get(STORY.id(1)) == STORY.page(1).payload


# Writing.


def test_a_page_is_written_once_and_one_that_holds_more_replaces_one_that_holds_less(
    machines: Machines,
) -> None:
    one, two = machines(), machines()
    assert one.store.write(STORY.page(1, held=8)) == "written"
    assert two.store.write(STORY.page(1, held=8)) == "present"
    assert two.store.write(STORY.page(1, held=16)) == "written"
    assert one.store.write(STORY.page(1, held=8)) == "present"
    (info,) = one.store.present([Placed(STORY.namespace, STORY.id(1))])
    assert (info.held, info.tier) == (16, "remote")
    usage = one.usage()
    assert (usage.written_pages, usage.present_pages) == (1, 1)


# Its own books.


def test_nothing_says_the_secret_or_the_password(machines: Machines) -> None:
    one = machines(password="hunter2", url="redis://user:hunter2@somewhere")
    _write(one, 1)
    shown = f"{one!r} {one.usage()} {one.store!r} {vars(one.store)} {vars(one)}"
    assert "hunter2" not in shown
    assert SECRET.decode() not in shown
