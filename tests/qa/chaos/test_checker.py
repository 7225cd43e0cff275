"""The harness itself: it sees what is wrong, lost, over, stuck or left when something is."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache

from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.reader import PageReader
from qa.chaos.faults import Restarts
from qa.chaos.rounds import BETWEEN_RUNS, ROUNDS, run_round
from qa.chaos.subjects import MIXTURES, Truth, feed, leaves, wrong_in
from qa.chaos.tally import Tally
from qa.chaos.world import Sampler, World, roomy_options

TOKENS = [random.Random(3).randrange(50_000) for _ in range(90)]


def _fed(name: str, steps: list[int]) -> list[Any]:
    caches, position = MIXTURES[name].make(), 0
    for step in steps:
        feed(caches, Truth(TOKENS), position, position + step)
        position += step
    return caches


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("steps", [[90], [40, 1, 1, 8, 40], [1] * 30 + [60]])
def test_a_live_cache_is_right_whatever_the_steps(name: str, steps: list[int]) -> None:
    assert wrong_in(_fed(name, steps), Truth(TOKENS), 90) == ""


@pytest.mark.parametrize("name", MIXTURES)
def test_another_token_anywhere_is_seen(name: str) -> None:
    caches = _fed(name, [90])
    for place in (0, 45, 89):
        other = [token + (index == place) for index, token in enumerate(TOKENS)]
        assert wrong_in(caches, Truth(other), 90)
    assert wrong_in(caches, Truth(TOKENS), 89)


@pytest.mark.parametrize("name", MIXTURES)
def test_one_flipped_bit_of_any_layer_is_seen(name: str) -> None:
    for layer, _ in leaves(MIXTURES[name].make()):
        caches = _fed(name, [90])
        cache = dict(leaves(caches))[layer]
        if isinstance(cache, ArraysCache):
            cache[1] = _flipped(cache[1])
        elif isinstance(cache.keys, tuple | list):
            cache.keys = (_flipped(cache.keys[0]), *cache.keys[1:])
        else:
            cache.values = _flipped(cache.values)
        assert wrong_in(caches, Truth(TOKENS), 90)


def _flipped(array: mx.array) -> mx.array:
    raw = np.array(array)
    # The first token's first value, which every cache here still holds.
    raw.view(np.uint8).reshape(-1)[0] ^= 1
    return mx.array(raw)


@pytest.mark.nightly
def test_damage_that_nobody_verifies_is_wrong(
    world: Callable[..., World], tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unverified(self: PageReader, pieces: list[Any]) -> None:
        self._fs.read_into(self._fd, self._header.data_offset, pieces)
        self.was_read = True

    monkeypatch.setattr(PageReader, "_fill", unverified)
    ROUNDS[BETWEEN_RUNS](world(BETWEEN_RUNS, sessions=96))
    assert {failure.verdict for failure in tally.failures} == {"wrong"}


class ForgetfulDisk(FileSystem):
    """Loses every fifth file that it published."""

    def __init__(self) -> None:
        self.published = 0

    def set_times(self, path: StrPath, time_ns: int) -> None:
        super().set_times(path, time_ns)
        self.published += 1
        if self.published % 5 == 0:
            Path(path).unlink(missing_ok=True)


class ForgetfulRestarts(Restarts):
    def options(self) -> dict[str, object]:
        return {**super().options(), "durability": "none"}

    def disk(self) -> FileSystem:
        return ForgetfulDisk()


@pytest.mark.nightly
def test_a_disk_that_forgets_has_lost_something(world: Callable[..., World], tally: Tally) -> None:
    run_round(world("restart", sessions=80), ForgetfulRestarts)
    assert "lost" in {failure.verdict for failure in tally.failures}


def test_a_file_beyond_the_budget_is_over(world: Callable[..., World], tally: Tally) -> None:
    here = world("over")
    here.options = {**roomy_options(here.draw), "cold_bytes": 600 * 1024}
    with here.open():
        sampler = Sampler(here, 1)
        sampler.stop()
        assert tally.failures == []
        (here.cold_dir / "stranger").write_bytes(bytes(700 * 1024))
        sampler.sample()
    assert {failure.verdict for failure in tally.failures} == {"over"}


def test_a_call_beyond_its_deadline_is_stuck(world: Callable[..., World], tally: Tally) -> None:
    here = world("stuck", grace=0.01)
    with here.timed("wait", 0.0):
        threading.Event().wait(0.05)
    assert [failure.verdict for failure in tally.failures] == ["stuck"]


def test_an_open_session_is_left(world: Callable[..., World], tally: Tally) -> None:
    here = world("left")
    here.options = roomy_options(here.draw)
    here.open()
    here.store.counters.add(live_sessions=1)
    here.close()
    here.check_closed()
    assert [failure.verdict for failure in tally.failures] == ["left"]
