"""Conversations that grow, branch, repeat and break off, in stores far too small for them, on a
disk that fails now and then: what is restored is right, and nothing is left behind."""

import errno
import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from kit.drive import feed, settings
from kit.examples import some
from kit.storage.faults import FaultyDisk
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.batch import CachedBatchGenerator

ROUNDS, REQUESTS, LONGEST = 5, 6, 400

CLOSE = 1e-3
"""Chunks are cut anew, which may change last bits; another token changes whole numbers."""


class GivenUp(Exception):
    """A request that its scheduler gives up."""


class Conversations:
    """Random requests of one model, drawn from a seed; `told` are the sequences so far."""

    def __init__(self, family: str, seed: int) -> None:
        self.draw = random.Random(seed)
        self.model = zoo.build(family)
        self.vocab = zoo.FAMILIES[family].vocab
        self.model.set_dtype(mx.float32)
        self.told: list[list[int]] = []
        self.restored = 0

    def options(self) -> dict[str, Any]:
        choose = self.draw.choice
        return {
            "hot_bytes": choose([0, 40_000, 200_000, "64MiB"]),
            "queue_bytes": choose([30_000, 300_000]),
            "cold_bytes": choose([600_000, "1GiB"]),
            "write_policy": choose(["through", "lazy"]),
            "commit_wait_seconds": choose([0, 0.05, 86400, 86400]),
            "snapshot_stride": choose([64, 128]),
        }

    def prompt(self) -> list[int]:
        """One that grows, branches off, repeats or begins."""
        known = list(self.draw.choice(self.told)) if self.told else []
        kind = self.draw.choice(["grow", "grow", "branch", "repeat", "begin"])
        if kind == "repeat" and len(known) > 1:
            return known[:LONGEST]
        if kind != "grow":
            known = known[: self.draw.randrange(len(known) + 1)] if kind == "branch" else []
        new = [self.draw.randrange(self.vocab) for _ in range(60)]
        return (known + new[: self.draw.randrange(2, 60)])[:LONGEST]

    def check(self, tokens: list[int], start: int, logits: list[mx.array]) -> None:
        """Compare the logits of the tokens from `start` on with those of a run without cache."""
        right = np.array(feed(self.model, make_prompt_cache(self.model), tokens))
        ours = np.concatenate([np.array(part) for part in logits])
        right = right[start : start + len(ours)]
        assert np.max(np.abs(ours - right)) <= CLOSE * np.max(np.abs(right))

    def alone(self, cache: PrefixCache) -> None:
        tokens = self.prompt()
        begun = cache.begin(tokens) if self.draw.random() < 0.5 else None
        if begun is not None and self.draw.random() < 0.3:
            begun.wait(1)
        breaks_off = self.draw.choice([None, None, None, "abort", "raise"])
        with cache.session(tokens, begun=begun) as session:
            start = session.cached_tokens
            self.restored += start
            logits: list[mx.array] = []
            for chunk in session.prefill_chunks(step=self.draw.choice([16, 48, 100])):
                logits.append(feed(self.model, session.prompt_cache, chunk))
                if breaks_off is not None and self.draw.random() < 0.4:
                    self.told.append(tokens)
                    if breaks_off == "raise":
                        raise GivenUp
                    return
            for _ in range(self.draw.choice([0, 5, 40])):
                token = int(mx.argmax(logits[-1][-1]).item())
                logits.append(feed(self.model, session.prompt_cache, [token]))
                session.append(token)
            self.check(session.tokens, start, logits)
            if self.draw.random() < 0.4:
                # Recorded and never fed: no page may be stored under its key.
                session.extend([1, 2, 3])
            session.commit()
            self.told.append(session.tokens)

    def together(self, cache: PrefixCache) -> None:
        generator = BatchGenerator(self.model, prefill_step_size=self.draw.choice([32, 100]))
        batch = CachedBatchGenerator(generator, cache)
        asked: dict[int, list[int]] = {}
        while len(asked) < 3 or len(batch):
            if len(asked) < 3:
                prompt = self.prompt()
                asked[batch.submit(prompt, max_tokens=self.draw.choice([1, 5, 40]))] = prompt
            for token in batch.next():
                asked[token.uid].append(token.token)
            if self.draw.random() < 0.02:
                batch.cancel(self.draw.choice(list(asked)))
        generator.close()
        self.told += asked.values()


def nothing_is_left(store: BlockStore) -> None:
    """Of a store that was closed, whose threads have ended."""
    store.hot.check_integrity()
    stats = store.stats()
    assert (stats.hot.nbytes, store.restores.nbytes) == (0, 0)
    assert (stats.requests.live_sessions, stats.snapshots.live_bytes) == (0, 0)
    assert stats.hot.peak_bytes <= stats.hot.limit_bytes
    assert stats.cold.peak_bytes <= stats.cold.limit_bytes
    assert store.restores.peak_bytes <= store.restores.limit_bytes


@pytest.mark.parametrize("family", some(["llama", "gemma3_text", "qwen3_next", "mamba2"], "llama"))
def test_what_is_restored_is_right_and_nothing_is_left_behind(family: str, tmp_path: Path) -> None:
    talk = Conversations(family, seed=9)
    for _ in range(ROUNDS):
        disk = FaultyDisk()
        with BlockStore(settings(tmp_path, **talk.options()), filesystem=disk) as store:
            store.restores.limit_bytes = talk.draw.choice([100_000, 64 << 20])
            cache = PrefixCache(talk.model, store)
            for _ in range(REQUESTS):
                fault = talk.draw.choice(["write", "publish", "open", "read_into", "remove"])
                disk.fail = {fault: errno.EIO} if talk.draw.random() < 0.15 else {}
                try:
                    if talk.draw.random() < 0.75:
                        talk.alone(cache)
                    else:
                        talk.together(cache)
                except GivenUp:
                    continue
            disk.fail = {}
            store.flush(30)
        nothing_is_left(store)
        talk.told = talk.told[-8:]
    assert talk.restored > 0
