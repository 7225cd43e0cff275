"""What a scheduler asks of a store, in a random order.

Caches are mlx-lm's own and no model computes: every value is its token, so that every restore is
compared, and most of the time is the store's.
"""

import random
import struct
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from kit import zoo
from kit.restoring import contents, needed
from omlx_cache import BlockStore, PrefixCache

WINDOW, BLOCK, WIDTH = 64, 16, 8
SECONDS = 150


def make_cache() -> list[Any]:
    return [KVCache(), RotatingKVCache(max_size=WINDOW)]


def feed(caches: list[Any], tokens: list[int]) -> None:
    """Do what a model does to its caches: every value is the token."""
    column = mx.array(tokens, mx.float32)[None, None, :, None]
    values = mx.broadcast_to(column, (1, 1, len(tokens), WIDTH))
    for cache in caches:
        mx.eval(cache.update_and_fetch(values, values))


def is_right(caches: list[Any], tokens: list[int]) -> bool:
    """True when caches hold the tokens' values, all that is needed of them."""
    held = contents(caches)
    return all(
        held[name][token] == struct.pack("<8f", *[tokens[token]] * WIDTH)
        for name, wanted in needed(caches, len(tokens)).items()
        for token in wanted
    )


class Work:
    """What a scheduler does, in a random order; `wrong` counts restores with another's values."""

    def __init__(self, store: BlockStore, seed: int) -> None:
        self.store = store
        self.cache = PrefixCache(zoo.build("llama"), store, make_cache=make_cache)
        self.random = random.Random(seed)
        self.requests = self.wrong = self.restored = 0

    def prompt(self) -> list[int]:
        branch = self.random.randrange(12)
        length = self.random.randrange(20, 400)
        return [*range(100), *range(1000 * branch, 1000 * branch + length)]

    def request(self) -> None:
        tokens, pick = self.prompt(), self.random
        begun = self.cache.begin(tokens, salt=str(len(tokens) % 3)) if pick.random() < 0.3 else None
        if begun is not None and pick.random() < 0.3:
            begun.wait(0.01)
        with self.cache.session(tokens, salt=str(len(tokens) % 3), begun=begun) as session:
            self.requests += 1
            self.restored += session.cached_tokens
            self.wrong += not is_right(session.prompt_cache, tokens[: session.cached_tokens])
            for chunk in session.prefill_chunks(64):
                feed(session.prompt_cache, chunk)
            for token in range(5000, 5000 + pick.randrange(30)):
                feed(session.prompt_cache, [token])
                session.append(token)
            if pick.random() < 0.8:
                session.commit()

    def step(self) -> None:
        self.request()
        chance = self.random.random()
        if chance < 0.1:
            self.store.flush(0.2)
        elif chance < 0.15:
            self.store.shrink_hot(self.store.settings.hot_bytes // 2)
        elif chance < 0.2:
            self.cache.clear(salt="1")
        elif chance < 0.4:
            self.cache.prefetch(self.prompt(), salt="0")
        elif chance < 0.6:
            self.cache.lookup(self.prompt(), salt="2")
        else:
            self.store.stats()
