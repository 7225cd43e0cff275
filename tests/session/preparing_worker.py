"""`python -m session.preparing_worker DIRECTORY KINDS FIRST`: asks, and prepares what it asks for
next, until it is killed. Says the seed and the length of each prompt that is on the disk."""

import json
import sys
from pathlib import Path
from typing import Any

from contract.arithmetic import Arithmetic, tokens_of
from contract.driving import ask, settings
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.preparation import Preparation

ASKED, PREPARED = 103, 490


class Fed:
    """The model as a preparation calls it."""

    def __init__(self, model: Arithmetic, preparation: Preparation) -> None:
        self._model, self._preparation = model, preparation

    def __call__(self, tokens: Any, cache: Any) -> None:
        self._model.feed(cache, tokens[0].tolist(), self._preparation._position)


def main(directory: str, kinds: str, first: str) -> None:
    model = Arithmetic(kinds.split(","))
    with BlockStore(settings(Path(directory), worth_reading="off")) as store:
        cache = PrefixCache(model, store, model_id="worker")
        for seed in range(int(first), int(first) + 1000):
            turn = ask(model, cache, tokens_of(seed, ASKED))
            say(seed, ASKED, store.flush(60), turn.wrong)
            preparation = cache.prepare(tokens_of(seed, PREPARED))
            model_of_it = Fed(model, preparation)
            while preparation.step(model_of_it):
                say(seed, 0, False, "")
            if seed % 2:
                turn = ask(model, cache, tokens_of(seed, PREPARED + 3))
                # Nothing is prepared while this machine is short of memory.
                assert turn.cached >= ASKED + preparation.computed, turn.reason
                say(seed, PREPARED + 3, store.flush(60), turn.wrong)


def say(seed: int, count: int, flushed: bool, wrong: str) -> None:
    told = {"seed": seed, "count": count, "flushed": flushed, "wrong": wrong}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
