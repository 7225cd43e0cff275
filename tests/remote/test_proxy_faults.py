"""Whole requests through a proxy that breaks the way to a shared store: none fails, none is wrong,
and none waits longer than its deadlines allow."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kit.drive import random_tokens
from kit.remote.machines import Machine, on_another_machine
from kit.remote.processes import NotYet, eventually
from kit.remote.proxy import Proxy, Way, proxy_to
from kit.remote.redis_servers import RedisServer, redis_server
from kit.units import KIB
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage import calls

TOKENS = 321
LOOKUP = 0.3
READ = 4 * LOOKUP
SLACK = 4.0
"""What the computing itself may take more, on a machine with too much to do."""
MORE = 1.25
"""Between one wait and the next a thread may have to wait for its turn."""
FAULTS: dict[str, Callable[[Proxy], object]] = {
    "stalled": lambda proxy: proxy.rules(down=Way(stalls=True)),
    "half open": lambda proxy: proxy.rules(up=Way(stalls=True), down=Way(stalls=True)),
    "slow": lambda proxy: proxy.delay(0.4),
    "far": lambda proxy: proxy.delay(0.05),
    "narrow": lambda proxy: proxy.rules(down=Way(rate=300 * KIB)),
    "trickled": lambda proxy: proxy.rules(down=Way(trickle=0.01)),
    "cut": lambda proxy: proxy.rules(down=Way(cut_after=20 * KIB)),
    "reset": lambda proxy: proxy.rules(down=Way(cut_after=20 * KIB, resets=True)),
    "flipped": lambda proxy: proxy.rules(down=Way(corrupt_every=5003)),
    "flipped often": lambda proxy: proxy.rules(down=Way(corrupt_every=97)),
    "refused": lambda proxy: (proxy.refuse(), proxy.reset()),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, forks: None) -> Iterator[RedisServer]:
    """A server that has what another machine computed."""
    with redis_server() as server:
        on_another_machine(server.url, tmp_path_factory.mktemp("a"), "llama", TOKENS)
        yield server


class _Waits:
    """What is waited for with a time-out, on all threads: when, and for how long at most. That a
    thread was woken late, on a machine with too much to do, is no wait."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def __call__(self, wait: Callable[[float | None], bool], timeout: float | None) -> bool:
        began = time.monotonic()
        try:
            return _WAIT(wait, timeout)
        finally:
            if timeout is not None:
                self._spans.append((began, min(time.monotonic(), began + timeout)))

    @property
    def seconds(self) -> float:
        """For how long somebody waited."""
        waited = upto = 0.0
        for began, ended in sorted(self._spans):
            waited += max(0.0, ended - max(began, upto))
            upto = max(upto, ended)
        return waited


_WAIT = calls.wait_in_turns


@contextmanager
def _in_time(allowed: float = LOOKUP + READ) -> Iterator[None]:
    waits = _Waits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "wait_in_turns", waits)
        began = time.monotonic()
        yield
        assert time.monotonic() - began < allowed + SLACK
    assert waits.seconds <= MORE * allowed


def _is_found(machine: Machine, store: BlockStore) -> None:
    """Raise NotYet until a look-up is answered in time: the first one has to connect."""
    found = PrefixCache(machine.model, store).lookup(random_tokens(TOKENS, 1))
    if found.cached_tokens != TOKENS - 1:
        raise NotYet(found.miss_reason)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "found",
    [False, pytest.param(True, marks=pytest.mark.nightly)],
    ids=["from the look-up on", "from the reads on"],
)
def test_a_request_over_a_broken_way_is_right_and_in_time(
    fault: str, found: bool, filled: RedisServer, tmp_path: Path
) -> None:
    with proxy_to(filled.port) as proxy:
        given = {"remote_writes": "off", "remote_lookup_seconds": LOOKUP}
        machine = Machine("llama", tmp_path, f"redis://{proxy.place}", **given)
        with machine.store() as store:
            if found:
                eventually(partial(_is_found, machine, store), "an answer in time")
            FAULTS[fault](proxy)
            # Over a narrow way something comes all the time.
            with _in_time(4 if fault == "narrow" else LOOKUP + READ):
                turn = machine.ask(store, TOKENS)
            proxy.free()
    assert turn.cached == TOKENS - 1 or turn.reason is not None
    assert machine.is_right(turn, TOKENS)
