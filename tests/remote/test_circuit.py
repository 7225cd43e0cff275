"""A store that fails is left alone, and only a probe finds out when it answers again."""

import threading
from collections.abc import Iterator

import pytest

from omlx_cache_storage.breaker import FAILURES, LONGEST_SECONDS
from omlx_cache_storage.remote import circuit as module
from omlx_cache_storage.remote.circuit import Circuit

DEADLINE = 60.0


class _Store:
    """Answers probes or not; each one is counted, and may be waited for."""

    def __init__(self) -> None:
        self.answers = False
        self.probes = 0
        self.threads: set[str] = set()
        self.changes: list[str] = []
        self.closed_again = threading.Event()
        self.probed = threading.Semaphore(0)

    def ping(self) -> None:
        self.probes += 1
        self.threads.add(threading.current_thread().name)
        self.probed.release()
        if not self.answers:
            raise ConnectionError("nobody listens")

    def changed(self, why: str) -> None:
        self.changes.append(why)
        if not why:
            self.closed_again.set()


@pytest.fixture
def store() -> _Store:
    return _Store()


@pytest.fixture
def circuit(store: _Store) -> Iterator[Circuit]:
    made = Circuit(store.ping, first_seconds=0.001, changed=store.changed)
    yield made
    assert made.close(DEADLINE)


def test_some_failures_in_a_row_open_it_and_a_success_between_counts(
    circuit: Circuit, store: _Store
) -> None:
    for _ in range(5):
        for _ in range(FAILURES - 1):
            circuit.failed("bad luck")
        assert circuit.why == ""
        circuit.succeeded()
    for _ in range(FAILURES):
        circuit.failed("gone")
    assert circuit.why == "gone"
    assert circuit.rests == 1
    assert store.changes == ["gone"]


def test_a_read_that_stalled_opens_it_at_once(circuit: Circuit) -> None:
    circuit.trip("stalled")
    circuit.trip("again")
    assert (circuit.why, circuit.rests) == ("stalled", 1)


def test_probes_on_a_thread_of_their_own_close_it(circuit: Circuit, store: _Store) -> None:
    circuit.trip("stalled")
    for _ in range(3):
        assert store.probed.acquire(timeout=DEADLINE)
    assert circuit.why == "stalled"
    store.answers = True
    assert store.closed_again.wait(DEADLINE)
    assert circuit.why == ""
    assert store.threads == {"omlx-cache-remote-probe"}
    assert store.changes == ["stalled", ""]
    # It may open again, and counts anew.
    circuit.failed("one")
    assert circuit.why == ""


def _pauses(monkeypatch: pytest.MonkeyPatch) -> Circuit:
    """Return a circuit that never probes: its pauses are asked for by hand, and have no jitter."""
    monkeypatch.setattr(module.random, "uniform", lambda low, high: (low + high) / 2)
    return Circuit(lambda: None)


def test_pauses_double_up_to_a_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = _pauses(monkeypatch)
    pauses = [circuit._next_pause() for _ in range(9)]
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS]


def test_a_success_makes_the_next_pause_short_again_and_after_a_stall_only_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    circuit = _pauses(monkeypatch)
    assert [circuit._next_pause() for _ in range(2)] == [1, 2]
    circuit.succeeded()
    assert circuit._next_pause() == 1
    circuit.trip("stalled")
    with circuit._lock:
        # As if a probe had been answered.
        circuit._why = ""
    circuit.succeeded()
    assert circuit._next_pause() > 1
    circuit.succeeded(read=True)
    assert circuit._next_pause() == 1
    assert circuit.close(DEADLINE)


def test_machines_do_not_come_back_together() -> None:
    firsts = {Circuit(lambda: None)._next_pause() for _ in range(20)}
    assert len(firsts) > 10
    assert all(0.4 < first < 1.6 for first in firsts)


def test_a_closed_one_opens_no_more_and_a_probe_that_hangs_is_left_behind() -> None:
    hangs, reached = threading.Event(), threading.Event()

    def hang() -> None:
        reached.set()
        hangs.wait(DEADLINE)

    circuit = Circuit(hang, first_seconds=0.001)
    circuit.trip("stalled")
    assert reached.wait(DEADLINE)
    assert not circuit.close(0.01)
    hangs.set()
    assert circuit.close(DEADLINE)
    other = Circuit(hang)
    assert other.close(0.0)
    other.trip("late")
    assert other.why == ""


def test_without_a_thread_for_probes_it_stays_closed(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        circuit.trip("stalled")
    assert circuit.why == ""
    circuit.trip("stalled")
    assert circuit.why == "stalled"
