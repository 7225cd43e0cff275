"""What a scheduler asks of a store, in a random order.

Caches are mlx-lm's own and no model computes, so that most of the time is the store's; every
restore is compared.
"""

import random

from contract.arithmetic import WINDOWED, Arithmetic
from omlx_cache import BlockStore, PrefixCache


class Work:
    """What a scheduler does, in a random order; `wrong` counts restores with another's values."""

    def __init__(self, store: BlockStore, seed: int) -> None:
        self.store = store
        self.model = Arithmetic(WINDOWED)
        self.cache = PrefixCache(self.model, store)
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
            caches, at = session.prompt_cache, session.cached_tokens
            self.requests += 1
            self.restored += at
            self.wrong += bool(self.model.wrong(caches, tokens, at))
            for chunk in session.prefill_chunks(64):
                self.model.feed(caches, chunk, at)
                at += len(chunk)
            for token in range(5000, 5000 + pick.randrange(30)):
                self.model.feed(caches, [token], len(session.tokens))
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
