"""Machines that share a store: each a store with a directory of its own, here or in a process of
its own."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit import forks, zoo
from kit.drive import FedTurn, chunks, random_tokens, request, run, same, settings
from kit.remote.engines import PATIENT_SECONDS
from omlx_cache import BlockStore, PrefixCache

BLOCK = 32


class Machine:
    """A model on a machine, whose store is opened and closed; `fields` are its settings. It waits
    for other machines for as long as a loaded machine may take, unless they say otherwise."""

    def __init__(self, family: str, directory: Path, url: str, **fields: Any) -> None:
        self.model = zoo.build(family)
        self.directory = directory
        patient = {"remote_lookup_seconds": PATIENT_SECONDS}
        fixed = {"remote": url, "block_size": BLOCK, "worth_reading": "off"}
        self._fields = {**fixed, **patient, **fields}

    @contextmanager
    def store(self, **fields: Any) -> Iterator[BlockStore]:
        with BlockStore(settings(self.directory, **{**self._fields, **fields})) as store:
            yield store

    def ask(
        self, store: BlockStore, count: int, seed: int = 1, *, new: int = 0, **options: Any
    ) -> FedTurn:
        """Carry out one request for `count` tokens drawn from a seed."""
        cache = PrefixCache(self.model, store)
        return request(
            self.model, cache, random_tokens(count, seed), step=BLOCK, new=new, **options
        )

    def is_right(self, turn: FedTurn, count: int, seed: int = 1) -> bool:
        """True when a request gave, bit for bit, what a run without any cache gives."""
        before = chunks(random_tokens(count, seed)[: turn.cached], BLOCK)
        return same(turn.logits, run(self.model, [*before, *turn.steps]))


def on_another_machine(
    url: str, directory: Path, family: str, count: int, seed: int = 1, *, new: int = 0
) -> int:
    """Have a process with a directory of its own compute a prompt, and send it to the store; return
    how many tokens it had restored."""
    asked = [url, str(directory), family, str(count), str(seed), str(new)]
    ended = forks.run(["kit.remote.machines", *asked], dict(os.environ))
    assert ended.returncode == 0, ended.stderr
    cached, answered = map(int, ended.stdout.split())
    assert answered == new
    return cached


def main(url: str, directory: str, family: str, count: str, seed: str, new: str) -> None:
    """Say how many tokens were restored, and how many were generated."""
    machine = Machine(family, Path(directory), url)
    with machine.store() as store:
        turn = machine.ask(store, int(count), int(seed), new=int(new))
        assert store.uploads.flush(60), store.stats().remote
        print(turn.cached, len(turn.answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
