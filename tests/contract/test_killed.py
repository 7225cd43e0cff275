"""kill -9 at any instant: the reopened directory serves no wrong byte, has all that `flush` said,
and keeps no leftovers."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.arithmetic import DENSE, HYBRID, Arithmetic, tokens_of
from contract.driving import BLOCK, Child, ask, settings, until
from omlx_cache import BlockStore, PrefixCache

COUNT = 3 * BLOCK + 7


def killed_rounds(
    directory: Path, child: Callable[..., Child], kinds: tuple[str, ...], rounds: int
) -> None:
    """Kill a writer again and again, each time a little later; look at everything each time."""
    model, chance = Arithmetic(kinds), random.Random(7)
    given = {
        "cold_dir": str(directory),
        "cold_bytes": "256MiB",
        "hot_bytes": "16MiB",
        "min_free_bytes": 0,
        "durability": "none",
        "socket": "off",
        "block_size": BLOCK,
    }
    flushed: list[int] = []
    for number in range(rounds):
        writer = child("-m", "contract.worker", json.dumps(given))
        assert writer.hear() == {"ready": True}
        first = 1000 * number
        task = {"do": "fill", "first": first, "last": first + 900, "count": COUNT, "kinds": kinds}
        writer.tell(task)
        for _ in range(chance.randrange(1, 12)):
            told = writer.hear()
            assert told["wrong"] == ""
            flushed += [told["seed"]] if told["flushed"] else []
        # Somewhere inside the next request, or the one after it.
        writer.says_something(chance.random() * 0.03)
        writer.process.kill()
        for told in writer.heard_so_far():
            flushed += [told["seed"]] if told["flushed"] else []
        assert writer.end() != 0
        with BlockStore(settings(directory)) as store:
            cache = PrefixCache(model, store)
            for seed in flushed[-40:]:
                turn = ask(model, cache, tokens_of(seed, COUNT), commit=False)
                assert (turn.cached, turn.wrong) == (COUNT - 1, ""), (number, seed, turn.reason)
            for seed in range(first, first + 30):
                turn = ask(model, cache, tokens_of(seed, COUNT), commit=False)
                assert turn.wrong == ""
            # The directory is the reader's to tidy while it runs.
            assert until(lambda: not list(directory.glob("*/*/.tmp-*")))
    assert len(flushed) >= rounds


def test_a_killed_writer_loses_nothing_that_flush_said(
    directory: Path, child: Callable[..., Child]
) -> None:
    killed_rounds(directory, child, HYBRID, 3)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kinds", [DENSE, HYBRID, ("kv", "keep")], ids="-".join)
def test_forty_killed_writers(
    kinds: tuple[str, ...], directory: Path, child: Callable[..., Child]
) -> None:
    killed_rounds(directory, child, kinds, 40)
