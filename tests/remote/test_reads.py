"""Pages come from a remote store in order, in a window, and whoever waits is freed in time."""

import functools
import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.remote import MemoryEngine
from omlx_cache_storage.errors import PageUnreadable
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.remote import coming, reads, reasons
from omlx_cache_storage.remote.coming import Wanted
from omlx_cache_storage.remote.engine import Part, RemoteError
from omlx_cache_storage.remote.envelope import WIRE_BYTES
from omlx_cache_storage.remote.reads import RemoteReads
from omlx_cache_storage.remote.slabs import Sink
from omlx_cache_storage.remote.window import TOGETHER

KIB = 1024
DEADLINE = 60.0


class _Rig:
    """Reads of an engine in memory, with values by number."""

    def __init__(
        self,
        *,
        part_bytes: int | None = 64 * KIB,
        connections: int = 4,
        stalled_seconds: float = DEADLINE,
        window_bytes: int = 1 << 20,
    ) -> None:
        self.engine = MemoryEngine(part_bytes=part_bytes)
        self.errors: list[RemoteError] = []
        self.stalls = 0
        self.read_bytes = 0
        self.rates: list[tuple[int, float]] = []
        self.reads = RemoteReads(
            self.engine,
            connections,
            stalled_seconds,
            failed=self.errors.append,
            stalled=self._stalled,
            came=self._came,
            measured=lambda nbytes, seconds: self.rates.append((nbytes, seconds)),
            window_bytes=window_bytes,
        )

    def _stalled(self) -> None:
        self.stalls += 1

    def _came(self, nbytes: int) -> None:
        self.read_bytes += nbytes

    def put(self, number: int, nbytes: int) -> bytes:
        value = _value(number, nbytes)
        size = self.engine.part_bytes or nbytes
        parts = [[value[at : at + size]] for at in range(0, nbytes, size)]
        self.engine.write(_name(number), parts, replace=True)
        return value

    def wanted(self, *numbers: int, nbytes: int = 0, about: int = 0) -> list[Wanted]:
        return [Wanted(_page(number), _name(number), nbytes, about) for number in numbers]

    def take(self, number: int, nbytes: int = 0) -> bytes:
        (wanted,) = self.wanted(number, nbytes=nbytes)
        return b"".join(map(bytes, self.reads.take(wanted)))


def _page(number: int) -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "big")), "paged")


def _name(number: int) -> str:
    return f"value-{number}"


def _value(number: int, nbytes: int) -> bytes:
    """A value that says how long it is, where an envelope does."""
    head = bytes(16) + (nbytes - WIRE_BYTES).to_bytes(8, "little") + bytes(WIRE_BYTES - 24)
    return (head + bytes([number % 251]) * nbytes)[:nbytes]


@pytest.fixture
def rigs() -> Iterator[Callable[..., _Rig]]:
    made: list[_Rig] = []

    def make(**options: object) -> _Rig:
        made.append(_Rig(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for rig in made:
        rig.engine.close()
        assert rig.reads.close(DEADLINE)
        assert rig.reads.held_bytes == 0
        rig.reads.check_integrity()


@pytest.fixture
def helper() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.002)


def _names_read(rig: _Rig) -> list[list[str]]:
    """Note the names of each read from now on."""
    names: list[list[str]] = []
    rig.engine.each["read"] = lambda parts: names.append([part.name for part in parts])
    return names


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("part_bytes", [64 * KIB, None])
@pytest.mark.parametrize("nbytes", [200, 64 * KIB, 64 * KIB + 1, 300 * KIB])
def test_what_is_expected_comes_whole(
    rigs: Callable[..., _Rig], part_bytes: int | None, nbytes: int, known: bool
) -> None:
    rig = rigs(part_bytes=part_bytes)
    values = [rig.put(number, nbytes) for number in range(6)]
    with rig.reads.expect(rig.wanted(*range(6), nbytes=nbytes if known else 0, about=nbytes)):
        for number, value in enumerate(values):
            assert rig.take(number) == value
    assert rig.read_bytes == 6 * nbytes


def test_a_page_that_nobody_expected_comes_too(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()
    value = rig.put(1, 1000)
    assert rig.take(1, 1000) == value
    assert rig.take(1, 1000) == value


def test_a_value_of_unknown_length_comes_in_all_its_parts(rigs: Callable[..., _Rig]) -> None:
    for part_bytes in (KIB, 64 * KIB, None):
        rig = rigs(part_bytes=part_bytes)
        value = rig.put(1, 200 * KIB + 3)
        assert rig.take(1) == value


def test_small_pages_travel_together(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(connections=1)
    for number in range(100):
        rig.put(number, 500)
    with rig.engine.hanging("read"):
        expected = rig.reads.expect(rig.wanted(*range(100), nbytes=500))
        assert rig.engine.reached.wait(DEADLINE)
    for number in range(100):
        rig.take(number)
    expected.close()
    assert rig.engine.calls["read"] == -(-100 // TOGETHER)


def test_no_more_comes_than_the_window_holds_and_all_comes_in_the_end(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(window_bytes=256 * KIB)
    over: list[int] = []
    held = lambda parts: over.append(rig.reads.held_bytes)  # noqa: E731
    for number in range(60):
        rig.put(number, 60 * KIB)
    rig.engine.each["read"] = held
    with rig.reads.expect(rig.wanted(*range(60), nbytes=60 * KIB)):
        for number in range(60):
            assert len(rig.take(number)) == 60 * KIB
    # A reader's own page comes whatever the window holds.
    assert max(over) <= 256 * KIB + 60 * KIB
    assert rig.reads.peak_bytes <= 256 * KIB + 60 * KIB


def test_two_pages_come_whatever_the_window_holds(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(window_bytes=1, connections=1)
    names = _names_read(rig)
    for number in range(3):
        rig.put(number, 1000)
    with rig.reads.expect(rig.wanted(0, 1, 2, nbytes=1000)):
        _until(lambda: rig.read_bytes == 2000)
        assert functools.reduce(operator.iadd, names, []) == [_name(0), _name(1)]
        assert [len(rig.take(number)) for number in (0, 1, 2)] == [1000] * 3


def test_pages_may_be_taken_in_any_order_through_a_small_window(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(window_bytes=1)
    for number in range(20):
        rig.put(number, 1000)
    with rig.reads.expect(rig.wanted(*range(20), nbytes=1000)):
        for number in reversed(range(20)):
            assert rig.take(number) == _value(number, 1000)


class _Time:
    """What `time.monotonic` says to reads: it stands still but for `pass_by`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_a_reader_that_comes_late_is_not_taken_for_a_store_that_stalls(
    rigs: Callable[..., _Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Time()
    monkeypatch.setattr(reads, "time", clock)
    monkeypatch.setattr(coming, "time", clock)
    rig = rigs(window_bytes=1)
    for number in range(6):
        rig.put(number, 1000)
    with rig.reads.expect(rig.wanted(*range(6), nbytes=1000)):
        _until(lambda: rig.read_bytes == 2000)
        clock.now += 100 * DEADLINE
        for number in range(6):
            assert rig.take(number) == _value(number, 1000)
    assert (rig.stalls, rig.errors) == (0, [])


def test_a_store_that_stalls_frees_the_reader_and_fails_all_that_is_expected(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(stalled_seconds=0.2)
    for number in range(10):
        rig.put(number, 1000)
    with rig.engine.hanging("read"), rig.reads.expect(rig.wanted(*range(10), nbytes=1000)):
        with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
            rig.take(0)
        asked = rig.engine.calls["read"]
        for number in range(1, 10):
            with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
                rig.take(number)
        assert rig.stalls == 1
        assert rig.engine.calls["read"] == asked
        assert rig.reads.held_bytes == 0
    assert rig.take(0, 1000) == _value(0, 1000)


def test_one_connection_that_hangs_is_not_taken_for_the_store(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(stalled_seconds=0.3)
    hangs = threading.Event()

    def hang(parts: Sequence[Part]) -> None:
        if parts[0].name == _name(0):
            hangs.wait(DEADLINE)

    rig.put(0, 1000)
    rig.put(1, 1000)
    rig.engine.each["read"] = hang
    ended = threading.Event()

    def others() -> None:
        while not ended.is_set():
            rig.take(1, 1000)

    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(others)
        with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
            rig.take(0, 1000)
        ended.set()
        going_on.result(DEADLINE)
    hangs.set()
    assert rig.stalls == 0
    assert [error.reason for error in rig.errors] == ["timeout"]


def test_threads_that_hang_are_bounded_and_others_take_their_place(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(stalled_seconds=0.05, connections=2)
    rig.put(0, 1000)
    hangs = threading.Event()
    rig.engine.each["read"] = lambda parts: hangs.wait(DEADLINE)
    for _ in range(12):
        with pytest.raises(PageUnreadable):
            rig.take(0, 1000)
    threads = [t for t in threading.enumerate() if t.name.startswith("omlx-cache-remote-read")]
    assert 2 < len(threads) <= 8
    assert rig.engine.calls["read"] <= 8
    rig.reads.check_integrity()
    hangs.set()
    _until(lambda: rig.read_bytes == rig.engine.calls["read"] * 1000)


def test_what_somebody_waits_for_comes_before_what_is_only_expected(
    rigs: Callable[..., _Rig], helper: ThreadPoolExecutor
) -> None:
    rig = rigs(connections=1)
    names = _names_read(rig)
    for number in range(100):
        rig.put(number, 500)
    with rig.engine.hanging("read"):
        expected = rig.reads.expect(rig.wanted(*range(90), nbytes=500))
        assert rig.engine.reached.wait(DEADLINE)
        deep = helper.submit(rig.take, 80)
        stranger = helper.submit(rig.take, 95, 500)
        _until(lambda: len(rig.reads._window._urgent) == 2)
    assert deep.result(DEADLINE) == _value(80, 500)
    assert stranger.result(DEADLINE) == _value(95, 500)
    _until(lambda: len(names) >= 4)
    expected.close()
    assert {names[1][0], names[2][0]} == {_name(80), _name(95)}


def test_a_page_that_is_gone_is_lost_and_only_that(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()
    for number in (0, 2):
        rig.put(number, 1000)
    with rig.reads.expect(rig.wanted(0, 1, 2, nbytes=1000)):
        assert rig.take(0) == _value(0, 1000)
        with pytest.raises(PageUnreadable, match=reasons.LOST):
            rig.take(1)
        assert rig.take(2) == _value(2, 1000)
    assert (rig.stalls, rig.errors) == (0, [])


def test_a_value_of_which_a_part_is_gone_takes_nothing_of_the_window(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(part_bytes=KIB, connections=1)
    rig.put(0, 40 * KIB)
    with rig.engine.store.lock:
        del rig.engine.store.values[_name(0)][3:]
    for _ in range(3):
        expected = rig.reads.expect(rig.wanted(0, nbytes=40 * KIB))
        with expected, pytest.raises(PageUnreadable, match=reasons.LOST):
            rig.take(0)
        assert rig.reads.held_bytes == 0
    rig.reads.check_integrity()


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("refused", reasons.UNREACHABLE),
        ("auth", reasons.DENIED),
        ("throttled", reasons.THROTTLED),
        ("error", reasons.FAILED),
    ],
)
def test_what_an_engine_raises_fails_all_at_once_and_says_why(
    rigs: Callable[..., _Rig], trouble: str, reason: str
) -> None:
    rig = rigs()
    rig.engine.fail["read"] = trouble  # type: ignore[assignment]
    with rig.reads.expect(rig.wanted(*range(5), nbytes=1000)):
        for number in range(5):
            with pytest.raises(PageUnreadable, match=reason):
                rig.take(number)
    assert {error.reason for error in rig.errors} == {trouble}
    assert rig.stalls == 0


def test_an_engine_that_sees_first_that_nothing_comes_says_that_of_the_store(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs()
    rig.engine.fail["read"] = "timeout"
    with rig.reads.expect(rig.wanted(*range(5), nbytes=1000)):
        for number in range(5):
            with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
                rig.take(number)
    assert rig.stalls >= 1
    assert rig.errors == []


def test_an_engine_with_a_bug_is_a_failure_like_any_other(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()

    def fail(parts: Sequence[Part]) -> None:
        raise AttributeError("a client's own bug, secret=hunter2")

    rig.engine.each["read"] = fail
    with pytest.raises(PageUnreadable, match=reasons.FAILED) as raised:
        rig.take(0, 1000)
    assert "hunter2" not in str(raised.value)


def test_a_connection_that_was_lost_is_replaced_once(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()
    value = rig.put(0, 1000)
    rig.engine.fail["read"] = "lost"
    rig.engine.each["read"] = lambda parts: (
        rig.engine.fail.pop("read") if rig.engine.calls["read"] == 2 else None
    )
    assert rig.take(0, 1000) == value
    assert rig.errors == []
    rig.engine.fail["read"] = "lost"
    with pytest.raises(PageUnreadable, match=reasons.UNREACHABLE):
        rig.take(0, 1000)
    assert [error.reason for error in rig.errors] == ["lost"]


def test_who_is_interrupted_leaves_nothing_in_the_window(
    rigs: Callable[..., _Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(part_bytes=KIB, connections=1)
    rig.put(0, 20 * KIB)
    rig.put(1, 20 * KIB)

    def interrupt(future: "Future[object]", seconds: float) -> bool:
        raise KeyboardInterrupt

    with rig.engine.hanging("read"):
        expected = rig.reads.expect(rig.wanted(0, 1, nbytes=20 * KIB))
        assert rig.engine.reached.wait(DEADLINE)
        with monkeypatch.context() as patch:
            patch.setattr(reads, "done_within", interrupt)
            with pytest.raises(KeyboardInterrupt):
                rig.take(0)
    assert rig.take(1) == _value(1, 20 * KIB)
    assert rig.reads.held_bytes == 0
    expected.close()


def test_closing_takes_nothing_from_who_waits_already(
    rigs: Callable[..., _Rig], helper: ThreadPoolExecutor
) -> None:
    rig = rigs(connections=1, part_bytes=KIB)
    for number in range(4):
        rig.put(number, 20 * KIB)
    with rig.engine.hanging("read"):
        expected = rig.reads.expect(rig.wanted(*range(4), nbytes=20 * KIB))
        assert rig.engine.reached.wait(DEADLINE)
        waiting = helper.submit(rig.take, 3)
        _until(lambda: len(rig.reads._window._urgent) == 1)
        expected.close()
        expected.close()
    assert waiting.result(DEADLINE) == _value(3, 20 * KIB)
    assert (rig.stalls, rig.errors) == (0, [])


def test_a_window_that_is_given_back_is_anothers(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(window_bytes=1)
    names = _names_read(rig)
    for number in range(6):
        rig.put(number, 1000)
    first = rig.reads.expect(rig.wanted(0, 1, 2, nbytes=1000))
    _until(lambda: rig.read_bytes == 2000)
    second = rig.reads.expect(rig.wanted(3, 4, 5, nbytes=1000))
    assert _name(3) not in functools.reduce(operator.iadd, names, [])
    first.close()
    _until(lambda: rig.read_bytes == 4000)
    second.close()
    assert rig.reads.held_bytes == 0


def test_closing_frees_who_waits_and_the_rest_is_a_miss(
    rigs: Callable[..., _Rig], helper: ThreadPoolExecutor
) -> None:
    rig = rigs()
    rig.put(0, 1000)
    with rig.engine.hanging("read"):
        waiting = helper.submit(rig.take, 0, 1000)
        assert rig.engine.reached.wait(DEADLINE)
        assert not rig.reads.close(0.0)
        with pytest.raises(PageUnreadable):
            waiting.result(DEADLINE)
    with pytest.raises(PageUnreadable, match="closed"):
        rig.take(0, 1000)
    with rig.reads.expect(rig.wanted(0, nbytes=1000)) as expected:
        assert expected.closed


def test_two_readers_of_a_page_both_have_it(
    rigs: Callable[..., _Rig], helper: ThreadPoolExecutor
) -> None:
    rig = rigs()
    value = rig.put(0, 1000)
    with rig.reads.expect(rig.wanted(0, 0, nbytes=1000)):
        readers = [helper.submit(rig.take, 0, 1000) for _ in range(8)]
        assert [reader.result(DEADLINE) for reader in readers] == [value] * 8


def test_the_rate_is_that_of_all_connections_together(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()
    for number in range(50):
        rig.put(number, 60 * KIB)
    with rig.reads.expect(rig.wanted(*range(50), nbytes=60 * KIB)):
        for number in range(50):
            rig.take(number)
    _until(lambda: sum(nbytes for nbytes, _ in rig.rates) == 50 * 60 * KIB)
    assert all(seconds >= 0 for _, seconds in rig.rates)


@given(
    sizes=st.lists(st.integers(WIRE_BYTES, 9000), min_size=1, max_size=40),
    gone=st.sets(st.integers(0, 39)),
    part_bytes=st.sampled_from([500, 4096, None]),
    window=st.sampled_from([1, 10_000, 1 << 20]),
    readers=st.integers(1, 4),
    known=st.booleans(),
    left=st.integers(0, 10),
)
@hypothesis_settings(max_examples=examples(60))
def test_whoever_reads_what_in_whatever_window_gets_it_or_is_told(
    sizes: list[int],
    gone: set[int],
    part_bytes: int | None,
    window: int,
    readers: int,
    known: bool,
    left: int,
) -> None:
    rig = _Rig(part_bytes=part_bytes, window_bytes=window, connections=3)
    wanted = []
    for number, nbytes in enumerate(sizes):
        if number not in gone:
            rig.put(number, nbytes)
        wanted += rig.wanted(number, nbytes=nbytes if known else 0, about=nbytes)

    def read(first: int) -> None:
        with rig.reads.expect(wanted[first::readers]):
            for number in range(first, len(sizes) - left, readers):
                if number in gone:
                    with pytest.raises(PageUnreadable, match=reasons.LOST):
                        rig.take(number)
                else:
                    assert rig.take(number) == _value(number, sizes[number])

    with ThreadPoolExecutor(readers) as pool:
        for ended in [pool.submit(read, first) for first in range(readers)]:
            ended.result(DEADLINE)
    assert rig.reads.held_bytes == 0
    rig.reads.check_integrity()
    assert rig.reads.close(DEADLINE)
    assert rig.errors == []


def test_what_was_looked_into_is_read_once(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(window_bytes=1)
    value = rig.put(1, 200 * KIB)
    rig.put(2, 10 * KIB)
    (wanted,) = rig.wanted(1, nbytes=200 * KIB)
    assert b"".join(map(bytes, rig.reads.take(wanted, again=True))) == value
    assert rig.reads.held_bytes == 200 * KIB
    rig.reads.check_integrity()
    calls = rig.read_bytes
    with rig.reads.expect(rig.wanted(1, 2)):
        assert rig.take(1) == value
        assert rig.reads.held_bytes <= 10 * KIB
        assert rig.take(2) == _value(2, 10 * KIB)
    assert rig.read_bytes == calls + 10 * KIB


def test_what_nobody_takes_after_a_look_into_it_goes_when_others_are_done(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs()
    for number in range(5):
        rig.put(number, 10 * KIB)
        (wanted,) = rig.wanted(number, nbytes=10 * KIB)
        rig.reads.take(wanted, again=True)
        assert rig.reads.held_bytes <= reads.STAYING * 10 * KIB
    assert rig.reads.held_bytes == reads.STAYING * 10 * KIB
    with rig.reads.expect(rig.wanted(0)):
        assert rig.take(0)
    assert rig.reads.held_bytes == 0


def test_what_stays_does_not_keep_others_from_coming(rigs: Callable[..., _Rig]) -> None:
    rig = rigs(window_bytes=1)
    for number in range(6):
        rig.put(number, 10 * KIB)
    for number in (0, 1):
        rig.reads.take(rig.wanted(number)[0], again=True)
    with rig.reads.expect(rig.wanted(2, 3, 4, 5)):
        _until(lambda: rig.read_bytes >= 4 * 10 * KIB)


def test_what_was_expected_and_looked_into_is_still_expected(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()
    value = rig.put(1, 10 * KIB)
    (wanted,) = rig.wanted(1)
    with rig.reads.expect([wanted]):
        rig.reads.take(wanted, again=True)
        rig.reads.take(wanted, again=True)
        assert rig.take(1) == value
    assert rig.read_bytes == 10 * KIB


def test_an_absent_value_that_is_looked_into_leaves_nothing(rigs: Callable[..., _Rig]) -> None:
    rig = rigs()
    (wanted,) = rig.wanted(1)
    for _ in range(3):
        with pytest.raises(PageUnreadable, match=reasons.LOST):
            rig.reads.take(wanted, again=True)
    assert rig.reads.held_bytes == 0


def test_a_large_value_that_comes_slowly_is_waited_for_and_one_that_trickles_is_not(
    rigs: Callable[..., _Rig],
) -> None:
    rig = rigs(stalled_seconds=0.5)
    nbytes = reads.PROGRESS_BYTES

    def slowly(each: int, times: int) -> Callable[..., object]:
        def read(parts: Sequence[Part], sink: Sink) -> list[bytes]:
            for _ in range(times):
                sink.came(each)
                time.sleep(0.1)
            return [rig.engine.store.values[part.name][part.number] for part in parts]

        return read

    value = rig.put(1, 10 * KIB)
    rig.engine.read = slowly(nbytes, 12)  # type: ignore[assignment]
    assert rig.take(1) == value
    assert (rig.stalls, rig.errors) == (0, [])
    rig.engine.read = slowly(nbytes // 100, 12)  # type: ignore[assignment]
    with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
        rig.take(1)
    assert rig.stalls == 1


def test_a_failure_is_told_once_however_many_wait(
    rigs: Callable[..., _Rig], helper: ThreadPoolExecutor
) -> None:
    rig = rigs(stalled_seconds=0.3)
    for number in range(8):
        rig.put(number, 10 * KIB)
    with rig.engine.hanging("read"), rig.reads.expect(rig.wanted(*range(8))):
        taken = [helper.submit(rig.take, number) for number in range(8)]
        for one in taken:
            with pytest.raises(PageUnreadable, match=reasons.TIMEOUT):
                one.result(DEADLINE)
    assert rig.stalls + len(rig.errors) == 1
