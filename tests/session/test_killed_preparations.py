"""kill -9 while something is prepared: nothing that was asked for is lost, nothing is wrong, and
what nobody has asked for is not on the disk."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from session.preparing_worker import ASKED, PREPARED

from contract.arithmetic import DENSE, HYBRID, WINDOWED, Arithmetic, tokens_of
from contract.driving import Child, ask, environment, settings, until
from omlx_cache import BlockStore, PrefixCache

pytestmark = pytest.mark.usefixtures("forks")


@contextmanager
def working(tmp_path: Path, kinds: tuple[str, ...], first: int) -> Iterator[Child]:
    worker = Child(
        ["-m", "session.preparing_worker", str(tmp_path / "cold"), ",".join(kinds), str(first)],
        env=environment(OMLX_CACHE_RUNTIME_DIR=str(tmp_path / "run")),
        log=tmp_path / "worker.log",
        forked=True,
    )
    try:
        yield worker
    finally:
        with suppress(ProcessLookupError):
            worker.process.kill()
        assert worker.end() != 0


def killed_preparations(tmp_path: Path, kinds: tuple[str, ...], rounds: int) -> None:
    model, chance, flushed = Arithmetic(kinds), random.Random(3), dict[int, int]()
    for number in range(rounds):
        first = 1000 * number
        with working(tmp_path, kinds, first) as worker:
            told = [worker.hear() for _ in range(chance.randrange(1, 30))]
            worker.says_something(chance.random() * 0.02)
            worker.process.kill()
            told += worker.heard_so_far()
        assert not any(one["wrong"] for one in told), told
        flushed |= {one["seed"]: one["count"] for one in told if one["flushed"]}
        with BlockStore(settings(tmp_path / "cold", worth_reading="off")) as store:
            cache = PrefixCache(model, store, model_id="worker")
            for seed in {*list(flushed)[-20:], *range(first, first + 10)}:
                turn = ask(model, cache, tokens_of(seed, PREPARED + 3), commit=False)
                assert turn.wrong == "", (number, seed)
                assert turn.cached >= min(flushed.get(seed, 0), PREPARED + 2), (number, seed)
                if seed % 2 == 0 and seed >= first:
                    assert turn.cached <= ASKED, "nobody has asked for more"
            assert until(lambda: not list((tmp_path / "cold").glob("*/*/.tmp-*")))
    assert flushed


@pytest.mark.parametrize("kinds", [DENSE, HYBRID], ids="-".join)
def test_a_killed_preparation_loses_nothing_that_was_asked_for(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    killed_preparations(tmp_path, kinds, 2)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kinds", "rounds"), [(DENSE, 200), (HYBRID, 200), (WINDOWED, 100)], ids=str
)
def test_five_hundred_killed_preparations(
    kinds: tuple[str, ...], rounds: int, tmp_path: Path
) -> None:
    killed_preparations(tmp_path, kinds, rounds)
