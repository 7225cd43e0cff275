"""What one machine writes another one finds and reads, and every fault of the store is a miss."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from kit.remote import MemoryEngine, MemoryStore
from kit.remote.processes import until
from kit.storage import Story
from omlx_cache_storage import breaker
from omlx_cache_storage.breaker import FAILURES
from omlx_cache_storage.errors import (
    CorruptPage,
    ForeignPage,
    PageError,
    PageUnreadable,
    UndecodablePage,
)
from omlx_cache_storage.events import EventLog
from omlx_cache_storage.format.wrapping import wrap
from omlx_cache_storage.page import Page, PageId, Placed, TensorSpec
from omlx_cache_storage.remote import lookups, reasons
from omlx_cache_storage.remote.engine import RemoteError, RemoteOptions, Trouble
from omlx_cache_storage.remote.envelope import WIRE_BYTES
from omlx_cache_storage.remote.knowledge import ABSENT_SECONDS
from omlx_cache_storage.remote.lookups import THREADS, Asked, Inquiry
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
        return self.ask(_inquiry(blocks, story, length), timeout)

    def get(self, page: PageId) -> bytes:
        with self.reading(page) as opened:
            payload = bytearray(opened.meta.nbytes)
            opened.read_into([payload])
        return bytes(payload)

    def ask_again(self) -> None:
        """Let the time pass for which the store is left alone."""
        self.store.back_off._breaker.ask_again()
        assert self.resting == ""

    def has(self, *numbers: int, story: Story = STORY) -> list[bool]:
        return [info is not None for info in self.find_all(story.ids(*numbers))]


def _inquiry(
    blocks: int, story: Story = STORY, length: int = 0, others: Mapping[str, int] | None = None
) -> Inquiry:
    chain = story.chain
    keys = [story.namespace, *(chain.key(n * BLOCK) for n in range(1, blocks + 1))]
    length = length or blocks * BLOCK
    return Inquiry(story.namespace, BLOCK, keys, "paged", 0, others or {}, length, chain.key)


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
        made.append(_Machine(engine, replace(options, **changes)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for machine in made:
        assert machine.close(DEADLINE)
        assert machine.usage().held_bytes == 0


def _floats(story: Story = STORY, number: int = 2) -> Page:
    """A page of 2-byte floats that packs well."""
    nbytes = 64 * 1024
    meta = replace(story.meta(number), tensors=(TensorSpec("0.keys", "BF16", (64, 1024)),))
    payload = bytearray(2 * nbytes)
    payload[0::2], payload[1::2] = story.page(1, nbytes=nbytes).payload, b"\x3f" * nbytes
    return Page(meta, bytes(payload))


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
    assert two.info(tail.meta.id) is not None
    assert two.get(tail.meta.id) == tail.payload


def test_what_a_machine_wrote_itself_it_knows_without_asking(machines: Machines) -> None:
    one = machines()
    _write(one, 1, 2)
    assert one.has(1, 2) == [True, True]
    assert one.engine.calls["look"] == 0
    assert [event.kind for event in one.log.page(0, 9).events] == ["stored", "stored"]
    assert {event.tier for event in one.log.page(0, 9).events} == {"remote"}


# Asking, and its deadline.


def test_a_look_up_that_is_late_costs_its_deadline_and_becomes_known_all_the_same(
    machines: Machines,
) -> None:
    one, two = machines(), machines(lookup_seconds=0.05)
    _write(one, 1, 2)
    with two.engine.hanging("look"):
        began = time.monotonic()
        assert two.about(2) == Asked(False, reasons.TIMEOUT)
        assert time.monotonic() - began < DEADLINE / 2
        # Who asks the same again is not held up once more.
        assert two.about(2).trouble in (reasons.TIMEOUT, reasons.RESTING)
        assert two.usage().late_lookups == 1
    until(lambda: two.has(1, 2) == [True, True])
    assert two.usage().state == "ok"


def test_a_caller_with_less_time_waits_less_and_blames_nobody(machines: Machines) -> None:
    one = machines()
    with one.engine.hanging("look"):
        for n in range(2 * FAILURES):
            assert one.about(2 + n, timeout=0.01) == Asked(False, reasons.TIMEOUT)
        assert one.resting == ""
        assert one.usage().late_lookups == 0


def test_an_inquiry_that_was_begun_is_joined(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machines(), machines()
    _write(one, 1, 2)
    waiting: list[object] = []
    wait = lookups.done_within

    def noted(future: "Future[object]", seconds: float) -> bool:
        waiting.append(future)
        return wait(future, seconds)

    with ThreadPoolExecutor(4) as pool:
        with two.engine.hanging("look"):
            assert two.about(2, timeout=0) == Asked(False)
            monkeypatch.setattr(lookups, "done_within", noted)
            asking = [pool.submit(two.about, 2) for _ in range(4)]
            until(lambda: len(waiting) == 4)
            assert two.engine.calls["look"] <= 1
        assert [asked.result(DEADLINE) for asked in asking] == [Asked(True)] * 4
    assert len(set(waiting)) == 1
    assert two.usage().lookups == 1


def test_a_look_up_that_hangs_opens_the_breaker_until_it_is_answered(machines: Machines) -> None:
    one = machines(lookup_seconds=0.05)
    with one.engine.hanging("look"):
        asked = [one.about(2, Story(f"prompt {n}")).trouble for n in range(3 * THREADS)]
        assert asked == [reasons.TIMEOUT, *[reasons.RESTING] * (3 * THREADS - 1)]
        assert one.usage().state.startswith("resting: remote_timeout")
        assert (one.usage().rests, one.usage().late_lookups) == (1, 1)
    until(lambda: one.resting == "")
    assert one.about(2).trouble == ""


@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        ("refused", reasons.UNREACHABLE),
        ("lost", reasons.UNREACHABLE),
        ("timeout", reasons.TIMEOUT),
        ("auth", reasons.DENIED),
        ("throttled", reasons.THROTTLED),
        ("full", reasons.FAILED),
        ("error", reasons.FAILED),
    ],
)
def test_a_store_that_refuses_is_a_miss_with_a_reason_then_left_alone_then_used_again(
    machines: Machines, trouble: Trouble, word: str
) -> None:
    one, two = machines(), machines()
    _write(one, 1, 2)
    two.engine.fail["*"] = trouble
    assert [two.about(2).trouble for _ in range(FAILURES + 1)] == [word] * FAILURES + [
        reasons.RESTING
    ]
    assert two.usage().errors == {word: FAILURES}
    looks = two.engine.calls["look"]
    for _ in range(5):
        assert two.about(2) == Asked(False, reasons.RESTING)
    assert two.engine.calls["look"] == looks
    two.engine.fail.clear()
    two.ask_again()
    assert two.about(2) == Asked(news=True)
    assert two.get(STORY.id(1)) == STORY.page(1).payload
    kinds = [(event.kind, event.tier) for event in two.log.page(0, 9).events]
    assert kinds[:2] == [("failed", "remote"), ("resynced", "remote")]


def test_a_client_with_a_bug_raises_nothing_in_a_request(machines: Machines) -> None:
    one = machines()

    def fail(names: Sequence[str], sets: Sequence[str]) -> None:
        raise AttributeError("password=hunter2")

    one.engine.each["look"] = fail
    for n in range(FAILURES):
        assert one.about(2 + n) == Asked(False, reasons.FAILED)
    assert one.usage().rests == 1
    assert "hunter2" not in f"{one.store.back_off.trouble} {one.usage()} {one.log.page(0, 99)}"


def test_pages_of_a_store_that_is_left_alone_are_not_found_and_it_is_said_why(
    machines: Machines,
) -> None:
    one = machines(read_seconds=0.05)
    _write(one, 1, 2)
    tail = STORY.page(3, tail=5)
    assert one.store.write(tail) == "written"
    with one.engine.hanging("read", "ping"):
        with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
            one.get(STORY.id(1))
        # A read that stalled is enough.
        assert one.has(1, 2) == [False, False]
        assert one.tails_of([tail.meta.parent]) == set()
        assert one.hidden(STORY.ids(1, 2, 5)) == dict.fromkeys(STORY.ids(1, 2), reasons.RESTING)
        reads = one.engine.calls["read"]
        with pytest.raises(PageUnreadable, match=reasons.RESTING):
            one.get(STORY.id(1))
        with pytest.raises(RemoteError, match="left alone"):
            one.store.write(STORY.page(4))
        with pytest.raises(RemoteError, match="left alone"):
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
    with pytest.raises(PageUnreadable, match=reasons.LOST):
        two.get(STORY.id(2))
    assert two.has(1, 2, 3) == [True, False, True]
    assert two.hidden(STORY.ids(2)) == {STORY.id(2): reasons.LOST}
    assert (two.usage().lost_pages, two.usage().bad_pages, two.resting) == (1, 0, "")
    _write(one, 2)
    two.now += 1.1
    assert two.about(3).news
    assert two.get(STORY.id(2)) == STORY.page(2).payload


def test_a_tail_that_was_evicted_is_not_found_again_on_the_word_of_its_set(
    machines: Machines,
) -> None:
    one, two = machines(), machines()
    _write(one, 1)
    tail = STORY.page(2, tail=5)
    assert one.store.write(tail) == "written"
    one.engine.store.evict(tail.meta.key.hex())
    for _ in range(3):
        two.about(1, length=2 * BLOCK - 5)
        if two.info(tail.meta.id) is not None:
            with pytest.raises(PageUnreadable, match=reasons.LOST):
                two.get(tail.meta.id)
        two.now += 1.1
    assert two.usage().lost_pages == 1
    # Who computes it again writes it again.
    assert two.store.write(tail) == "written"
    assert two.get(tail.meta.id) == tail.payload


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
    assert info is not None
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


def test_a_page_of_which_a_part_was_evicted_is_let_alone_until_somebody_writes_it_anew(
    machines: Machines,
) -> None:
    one, two = machines(part_bytes=1000), machines(part_bytes=1000)
    _write(one, 1, 2)
    two.about(2)
    name = two.store.names.page(STORY.namespace, STORY.id(2))
    del one.engine.store.values[name][2:]
    with pytest.raises(PageUnreadable, match=reasons.LOST):
        two.get(STORY.id(2))
    two.now += 30
    two.about(2)
    assert two.has(1, 2) == [True, False]
    there = two.store.present([Placed(STORY.namespace, page) for page in STORY.ids(1, 2)])
    assert [info is not None for info in there] == [True, False]
    assert two.store.write(STORY.page(2)) == "written"
    assert two.get(STORY.id(2)) == STORY.page(2).payload


@pytest.mark.parametrize("nbytes", [0, 50, WIRE_BYTES, 3000])
def test_a_value_that_was_cut_is_a_miss(machines: Machines, nbytes: int) -> None:
    one, two = machines(), machines()
    _write(one, 1)
    two.about(1)
    name = two.store.names.page(STORY.namespace, STORY.id(1))
    one.engine.store.change(name, lambda raw: raw[:nbytes])
    with pytest.raises(PageError):
        two.get(STORY.id(1))
    assert two.info(STORY.id(1)) is None
    assert two.resting == ""


def test_a_stranger_without_the_secret_plants_nothing_and_destroys_nothing(
    machines: Machines,
) -> None:
    ours, stranger = machines(), machines(secret=b"what a stranger made up")
    _write(ours, 1)
    assert stranger.about(1) == Asked(False, reasons.FOREIGN)
    assert stranger.hidden(STORY.ids(1, 2)) == {STORY.id(1): reasons.FOREIGN}
    assert stranger.usage().bad_pages == 1
    assert stranger.store.write(STORY.page(1)) == "refused"
    assert stranger.store.present([Placed(STORY.namespace, STORY.id(1))]) == [None]
    assert stranger.store.write(STORY.page(2)) == "written"
    ours.now += 2
    ours.about(2)
    assert ours.has(1, 2) == [True, False]
    assert ours.get(STORY.id(1)) == STORY.page(1).payload


def test_what_another_secret_vouches_for_is_not_sent_to_learn_that_it_is_there(
    machines: Machines,
) -> None:
    ours, stranger = machines(), machines(secret=b"what a stranger made up")
    _write(ours, 1)
    assert stranger.store.present([Placed(STORY.namespace, STORY.id(1))]) == [None]
    assert stranger.store.write(STORY.page(1)) == "refused"
    assert stranger.engine.calls["write"] == 0
    ours.engine.store.evict(STORY.id(1).key.hex())
    stranger.now += ABSENT_SECONDS + 1
    assert stranger.store.write(STORY.page(1)) == "written"


def test_a_page_that_only_this_machine_cannot_decode_is_left_alone_and_not_called_bad(
    machines: Machines,
) -> None:
    one, two = machines(), machines()
    _write(one, 1)
    two.about(1)
    with pytest.raises(UndecodablePage), two.reading(STORY.id(1)):
        raise UndecodablePage("zstd is not installed")
    assert two.info(STORY.id(1)) is None
    assert two.hidden(STORY.ids(1)) == {STORY.id(1): UndecodablePage.reason}
    assert two.usage().bad_pages == 0


def test_a_page_is_not_read_into_memory_of_another_size(machines: Machines) -> None:
    one = machines()
    _write(one, 1)
    with pytest.raises(ForeignPage), one.reading(STORY.id(1)) as opened:
        opened.read_into([bytearray(opened.meta.nbytes + 1)])
    assert one.info(STORY.id(1)) is None


def test_an_error_of_who_reads_is_not_the_pages(machines: Machines) -> None:
    one = machines()
    _write(one, 1)
    with pytest.raises(ZeroDivisionError), one.reading(STORY.id(1)):
        raise ZeroDivisionError
    assert one.info(STORY.id(1)) is not None


def test_a_page_that_nobody_asked_for_is_a_miss(machines: Machines) -> None:
    one, two = machines(), machines()
    _write(one, 1)
    with pytest.raises(PageUnreadable, match=reasons.LOST):
        two.get(STORY.id(1))
    assert two.engine.calls["read"] == 0


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
    assert info is not None
    assert (info.held, info.tier) == (16, "remote")
    usage = one.usage()
    assert (usage.written_pages, usage.present_pages) == (1, 1)


def test_a_page_is_packed_once_whoever_packed_it(machines: Machines) -> None:
    one, two, plain = machines(), machines(prefix="other"), machines(prefix="plain", packs=False)
    page = _floats()
    assert one.store.write(page) == "written"
    assert two.store.write(wrap(page)) == "written"
    assert plain.store.write(page) == "written"
    assert one.usage().written_bytes == two.usage().written_bytes
    assert one.usage().written_bytes < 0.7 * plain.usage().written_bytes
    for machine in (one, two, plain):
        assert machine.get(page.meta.id) == page.payload
        info = machine.info(page.meta.id)
        assert info is not None
        assert info.nbytes == page.meta.nbytes


def test_a_tail_whose_writer_died_before_it_was_told_of_is_told_of_by_the_next(
    machines: Machines,
) -> None:
    one, two, three = machines(), machines(), machines()
    _write(one, 1)
    tail = STORY.page(2, tail=5)
    one.engine.fail["add"] = "lost"
    with pytest.raises(RemoteError):
        one.store.write(tail)
    assert two.store.write(tail) == "present"
    assert three.about(1, length=2 * BLOCK - 5).news
    assert three.get(tail.meta.id) == tail.payload


def test_a_page_that_another_machine_is_writing_is_not_taken_to_be_there(
    machines: Machines,
) -> None:
    one = machines()
    write = one.engine.write
    one.engine.write = lambda name, parts, *, replace: False  # type: ignore[method-assign]
    assert one.store.write(STORY.page(1)) == "busy"
    assert one.info(STORY.id(1)) is None
    one.engine.write = write  # type: ignore[method-assign]
    assert one.store.write(STORY.page(1)) == "written"


@pytest.mark.parametrize("trouble", ["full", "refused", "auth", "throttled", "lost", "timeout"])
def test_a_write_that_fails_raises_and_nothing_is_known_of_it(
    machines: Machines, trouble: Trouble
) -> None:
    one = machines()
    one.engine.fail["write"] = trouble
    for _ in range(FAILURES):
        with pytest.raises(RemoteError) as raised:
            one.store.write(STORY.page(1))
        assert raised.value.reason == trouble
    assert one.info(STORY.id(1)) is None
    assert one.usage().written_pages == 0
    assert one.resting


# Its own books.


def test_a_closed_tier_is_quiet(machines: Machines, caplog: pytest.LogCaptureFixture) -> None:
    one = machines()
    _write(one, 1, 2)
    assert one.close(DEADLINE)
    assert one.close(DEADLINE)
    calls = dict(one.engine.calls)
    assert one.about(2) == Asked(False, reasons.UNREACHABLE)
    assert one.has(1, 2) == [False, False]
    with pytest.raises(PageUnreadable):
        one.get(STORY.id(1))
    with pytest.raises(RemoteError, match="closed"):
        one.store.write(STORY.page(3))
    assert one.resting == ""
    assert dict(one.engine.calls) == calls
    assert caplog.records == []


def test_nothing_says_the_secret_or_the_password(machines: Machines) -> None:
    one = machines(password="hunter2", url="redis://user:hunter2@somewhere")
    _write(one, 1)
    shown = f"{one!r} {one.usage()} {one.store!r} {vars(one.store)} {vars(one)}"
    assert "hunter2" not in shown
    assert SECRET.decode() not in shown


LOOKUPS, PAGES = "remote_lookup_seconds", "remote_page_read_seconds"


def test_look_ups_and_pages_that_came_whole_are_timed(machines: Machines) -> None:
    other, one = machines(), machines()
    _write(other, 1, 2)
    assert not any(took.count for took in one.log.timings.observed().values())
    waited = 0.05
    for operation in ("look", "read"):
        one.engine.each[operation] = lambda *arguments: one.engine.closed.wait(waited)
    one.about(2)
    one.about(3, Story("of which there is nothing"))
    with one.reading(STORY.id(2)) as opened:
        # What is only looked into counts as none.
        assert opened.meta.id == STORY.id(2)
        one.get(STORY.id(1))
    for measure, count in ((LOOKUPS, 2), (PAGES, 1)):
        took = one.log.timings.observed()[measure]
        assert took.count == count
        assert waited / 2 <= took.sum < DEADLINE


def test_what_the_link_is_like_is_learned(machines: Machines) -> None:
    one, two = machines(), machines()
    page = STORY.page(1, nbytes=400_000)
    one.store.write(page)
    two.about(1)
    assert two.get(page.meta.id) == page.payload
    until(lambda: two.usage().bytes_per_second > 0)
    usage = two.usage()
    assert usage.latency_seconds > 0
