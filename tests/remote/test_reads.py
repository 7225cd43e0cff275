"""Pages come from a remote store in order, in bounded memory; who waits is freed in time."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.remote.processes import until
from omlx_cache_storage import readers
from omlx_cache_storage.errors import PageNotSent, PageUnreadable
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.readers import note_answer
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.engine import RemoteError, Trouble
from omlx_cache_storage.remote.reads import AHEAD_PAGES, RemoteReads, Value, WantedValue

KIB = 1024
DEADLINE = 60.0


class _Rig:
    """Reads of values in a dict; `each` is called with the number of each that is read."""

    def __init__(
        self,
        *,
        connections: int = 4,
        stalled_seconds: float = DEADLINE,
        ahead_bytes: int = 1 << 20,
    ) -> None:
        self.values: dict[int, bytes] = {}
        self.asked: list[int] = []
        self.each: Callable[[int], object] = lambda number: None
        self.told: list[tuple[Trouble, bool]] = []
        self.hang = threading.Event()
        self.hang.set()
        self.reached = threading.Semaphore(0)
        self.reads = RemoteReads(
            self._read,
            connections,
            stalled_seconds,
            lambda error, stalled: self.told.append((error.reason, stalled)),
            ahead_bytes=ahead_bytes,
        )

    def _read(self, wanted: WantedValue) -> Value:
        number = int(wanted.name)
        self.asked.append(number)
        self.reached.release()
        self.each(number)
        self.hang.wait(DEADLINE)
        if number not in self.values:
            raise PageNotSent(reasons.LOST, "it was evicted")
        return [self.values[number]]

    def put(self, *numbers: int, nbytes: int = 1000) -> None:
        for number in numbers:
            self.values[number] = bytes([number % 251]) * nbytes

    def wanted(self, *numbers: int) -> list[WantedValue]:
        sizes = {number: len(self.values.get(number, b"x" * 1000)) for number in numbers}
        return [WantedValue(_page(number), str(number), sizes[number]) for number in numbers]

    def take(self, number: int) -> bytes:
        (wanted,) = self.wanted(number)
        return b"".join(map(bytes, self.reads.take(wanted)))


def _page(number: int) -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "big")), "paged")


@pytest.fixture
def rigs() -> Iterator[Callable[..., _Rig]]:
    made: list[_Rig] = []

    def make(**options: object) -> _Rig:
        made.append(_Rig(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for rig in made:
        rig.hang.set()
        assert rig.reads.close(DEADLINE)
        assert rig.reads.held_bytes == 0
        rig.reads.check_integrity()


@pytest.fixture
def helper() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_what_is_expected_is_read_ahead_in_order(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(connections=1)
    rig.put(*range(6))
    with rig.reads.expect(rig.wanted(*range(6))):
        until(lambda: len(rig.asked) == 6)
        assert [rig.take(number) for number in range(6)] == [rig.values[n] for n in range(6)]
    assert rig.asked == list(range(6))


def test_no_more_is_read_ahead_than_memory_holds_and_all_comes_in_the_end(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(ahead_bytes=256 * KIB)
    over: list[int] = []
    rig.each = lambda number: over.append(rig.reads.held_bytes)
    rig.put(*range(60), nbytes=60 * KIB)
    with rig.reads.expect(rig.wanted(*range(60))):
        for number in range(60):
            assert len(rig.take(number)) == 60 * KIB
    # A reader's own page comes whatever lies there.
    assert max(over) <= 256 * KIB + 60 * KIB
    assert rig.reads.peak_bytes <= 256 * KIB + 60 * KIB


def test_two_pages_are_read_ahead_however_large_they_are(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(ahead_bytes=1)
    rig.put(*range(5))
    with rig.reads.expect(rig.wanted(*range(5))):
        until(lambda: len(rig.asked) == AHEAD_PAGES)
        for number in reversed(range(5)):
            assert rig.take(number) == rig.values[number]


def test_a_reader_that_comes_late_is_not_taken_for_a_store_that_stalls(
    rigs: Callable[..., _Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(ahead_bytes=1)
    rig.put(*range(6))
    with rig.reads.expect(rig.wanted(*range(6))):
        until(lambda: len(rig.asked) == AHEAD_PAGES)
        before = time.monotonic
        with monkeypatch.context() as patch:
            patch.setattr(readers.time, "monotonic", lambda: before() + 100 * DEADLINE)
            for number in range(6):
                assert rig.take(number) == rig.values[number]
    assert rig.told == []


def test_a_store_that_stalls_frees_the_reader_and_fails_all_that_is_expected(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(stalled_seconds=0.2, connections=1)
    rig.put(*range(10))
    rig.hang.clear()
    with rig.reads.expect(rig.wanted(*range(10))):
        for number in range(10):
            with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
                rig.take(number)
        assert rig.told == [("timeout", True)]
        rig.hang.set()
    assert rig.reads.held_bytes == 0
    assert rig.take(0) == rig.values[0]


def test_one_connection_that_hangs_is_not_taken_for_the_store(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(stalled_seconds=0.3)
    rig.put(0, 1)
    hangs, ended = threading.Event(), threading.Event()
    rig.each = lambda number: number or hangs.wait(DEADLINE)

    def others() -> None:
        while not ended.is_set():
            rig.take(1)

    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(others)
        with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
            rig.take(0)
        ended.set()
        going_on.result(DEADLINE)
    hangs.set()
    assert rig.told == [("timeout", False)]


def test_threads_that_hang_are_bounded_and_others_take_their_place(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(stalled_seconds=0.05, connections=2)
    rig.put(0)
    rig.hang.clear()
    for _ in range(12):
        with pytest.raises(PageUnreadable):
            rig.take(0)
    threads = [t for t in threading.enumerate() if t.name.startswith("omlx-cache-remote-read")]
    assert 2 < len(threads) <= 8
    assert len(rig.asked) <= 8


def test_a_page_that_is_gone_is_lost_and_only_that(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()
    rig.put(0, 2)
    with rig.reads.expect(rig.wanted(0, 1, 2)):
        assert rig.take(0) == rig.values[0]
        with pytest.raises(PageUnreadable, match=reasons.LOST):
            rig.take(1)
        assert rig.take(2) == rig.values[2]
    assert rig.told == []


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("refused", reasons.UNREACHABLE),
        ("auth", reasons.DENIED),
        ("throttled", reasons.THROTTLED),
        ("error", reasons.FAILED),
        ("timeout", reasons.TIMEOUT),
        ("resting", reasons.RESTING),
    ],
)
def test_what_an_engine_raises_fails_all_at_once_and_is_told_once(
    rigs: Callable[..., _Rig], trouble: Trouble, reason: str
) -> None:
    rig = rigs()

    def fail(number: int) -> None:
        raise RemoteError(trouble)

    rig.each = fail
    with rig.reads.expect(rig.wanted(*range(5))):
        for number in range(5):
            with pytest.raises(PageUnreadable, match=reason):
                rig.take(number)
    # The client's own time-out may be seen before a reader's.
    assert rig.told == [(trouble, trouble == "timeout")]


def test_an_engine_with_a_bug_is_a_failure_like_any_other(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()

    def fail(number: int) -> None:
        raise AttributeError("a client's own bug, secret=hunter2")

    rig.each = fail
    with pytest.raises(PageUnreadable, match=reasons.FAILED) as raised:
        rig.take(0)
    assert "hunter2" not in str(raised.value)


def test_who_is_interrupted_leaves_nothing_in_memory(
    rigs: Callable[..., _Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(connections=1)
    rig.put(0, 1)
    rig.hang.clear()

    def interrupt(future: object, seconds: float) -> bool:
        raise KeyboardInterrupt

    with rig.reads.expect(rig.wanted(0, 1)):
        assert rig.reached.acquire(timeout=DEADLINE)
        with monkeypatch.context() as patch:
            patch.setattr(readers, "done_within", interrupt)
            with pytest.raises(KeyboardInterrupt):
                rig.take(0)
        rig.hang.set()
        assert rig.take(1) == rig.values[1]
        assert rig.reads.held_bytes == 0


def test_closing_takes_nothing_from_who_waits_already(
    rigs: Callable[..., _Rig], helper: ThreadPoolExecutor
) -> None:
    rig = rigs(connections=1)
    rig.put(*range(4))
    rig.hang.clear()
    expected = rig.reads.expect(rig.wanted(*range(4)))
    waiting = helper.submit(rig.take, 0)
    until(lambda: not expected.has(_page(0)))
    expected.close()
    expected.close()
    rig.hang.set()
    assert waiting.result(DEADLINE) == rig.values[0]
    assert rig.told == []


def test_memory_that_is_given_back_is_anothers(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(ahead_bytes=1)
    rig.put(*range(6))
    first = rig.reads.expect(rig.wanted(0, 1, 2))
    until(lambda: sorted(rig.asked) == [0, 1])
    second = rig.reads.expect(rig.wanted(3, 4, 5))
    first.close()
    until(lambda: sorted(rig.asked) == [0, 1, 3, 4])
    second.close()
    assert rig.reads.held_bytes == 0


def test_a_closed_one_reads_nothing(rigs: Callable[..., _Rig], helper: ThreadPoolExecutor) -> None:
    rig = rigs(connections=1)
    rig.put(0, 1)
    rig.hang.clear()
    waiting = [helper.submit(rig.take, number) for number in (0, 1)]
    assert rig.reached.acquire(timeout=DEADLINE)
    until(lambda: rig.reads.held_bytes == 2000)
    assert not rig.reads.close(0.0)
    rig.hang.set()
    assert sum(one.exception(DEADLINE) is None for one in waiting) == 1
    with pytest.raises(PageUnreadable, match="closed"):
        rig.take(0)
    with rig.reads.expect(rig.wanted(0)) as expected:
        assert not expected.has(_page(0))


def test_two_readers_of_a_page_both_have_it(
    rigs: Callable[..., _Rig], helper: ThreadPoolExecutor
) -> None:
    rig = rigs()
    rig.put(0)
    with rig.reads.expect(rig.wanted(0, 0)):
        taken = [helper.submit(rig.take, 0) for _ in range(8)]
        assert [one.result(DEADLINE) for one in taken] == [rig.values[0]] * 8


def test_a_large_value_that_comes_slowly_is_waited_for_and_one_that_brings_nothing_is_not(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(stalled_seconds=0.5)
    rig.put(0, 1)

    def slowly(number: int) -> None:
        for _ in range(12):
            if number == 0:
                note_answer()
            threading.Event().wait(0.1)

    rig.each = slowly
    assert rig.take(0) == rig.values[0]
    assert rig.told == []
    with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
        rig.take(1)
    assert rig.told == [("timeout", True)]


def test_the_first_bytes_alone_take_nothing_from_whoever_reads_the_page(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs()
    rig.put(0)
    (wanted,) = rig.wanted(0)
    with rig.reads.expect([wanted]) as expected:
        rig.reads.take(wanted._replace(is_head=True, nbytes=100))
        assert expected.has(_page(0))
        assert rig.take(0) == rig.values[0]


@given(
    sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=40),
    gone=st.sets(st.integers(0, 39)),
    ahead=st.sampled_from([1, 10_000, 1 << 20]),
    threads=st.integers(1, 4),
    left=st.integers(0, 10),
)
@hypothesis_settings(max_examples=examples(60))
def test_whoever_reads_what_in_whatever_memory_gets_it_or_is_told(
    sizes: list[int], gone: set[int], ahead: int, threads: int, left: int
) -> None:
    rig = _Rig(ahead_bytes=ahead, connections=3)
    for number, nbytes in enumerate(sizes):
        if number not in gone:
            rig.put(number, nbytes=nbytes)
    wanted = rig.wanted(*range(len(sizes)))

    def read(first: int) -> None:
        with rig.reads.expect(wanted[first::threads]):
            for number in range(first, len(sizes) - left, threads):
                if number in gone:
                    with pytest.raises(PageUnreadable, match=reasons.LOST):
                        rig.take(number)
                else:
                    assert rig.take(number) == rig.values[number]

    with ThreadPoolExecutor(threads) as pool:
        for ended in [pool.submit(read, first) for first in range(threads)]:
            ended.result(DEADLINE)
    assert rig.reads.held_bytes == 0
    rig.reads.check_integrity()
    assert rig.reads.close(DEADLINE)
    assert rig.told == []
