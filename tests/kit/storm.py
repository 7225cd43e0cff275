"""A process whose main thread is interrupted at random moments while it serves from a store.

`python -m kit.storm DIRECTORY INTERRUPTS SEED` prints one JSON object: what the store's books say
afterwards. Caches are mlx-lm's own and no model computes: every value is its token, so that every
restore is compared, and most of the time is the store's.
"""

import faulthandler
import gc
import json
import random
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from kit import zoo
from kit.drive import settings
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


class Interrupter(threading.Thread):
    """Sends SIGINT, once or twice, some time after each round of the main thread has begun.

    Plain fields only, each written by one thread: what waits in Python is what an interrupt breaks.
    """

    def __init__(self, count: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.left = count
        self.rounds = 0
        self.done = 0
        self.caught = 0
        self._random = random.Random(seed)

    def run(self) -> None:
        main = threading.main_thread().ident
        while self.left > 0:
            while self.rounds == self.done:
                time.sleep(0.0002)
            time.sleep(self._random.random() ** 2 * 0.02)
            caught, this = self.caught, self.rounds
            for _ in range(self._random.choice((1, 1, 2))):
                signal.pthread_kill(main, signal.SIGINT)
                self.left -= 1
                time.sleep(self._random.random() * 0.0003)
            deadline = time.monotonic() + 1
            while self.caught == caught and time.monotonic() < deadline:
                time.sleep(0.0002)
            # One that is raised in a finalizer is printed by Python, and lost: it is sent again.
            if self.caught > caught:
                self.done = this


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


def main(directory: str, interrupts: str, seed: str) -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    # A shell's background jobs ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store = BlockStore(
        settings(
            Path(directory),
            block_size=BLOCK,
            hot_bytes=192 * 1024,
            queue_bytes=64 * 1024,
            cold_bytes=2 * 1024 * 1024,
        )
    )
    store.restores.limit_bytes = 256 * 1024
    work = Work(store, int(seed))
    interrupter = Interrupter(int(interrupts), int(seed))
    interrupter.start()
    while interrupter.left > 0:
        try:
            try:
                interrupter.rounds += 1
                while True:
                    work.step()
            except KeyboardInterrupt:
                interrupter.caught += 1
            while interrupter.done < interrupter.rounds:
                time.sleep(0.0002)
            time.sleep(0.001)
        except KeyboardInterrupt:
            interrupter.caught += 1
    interrupter.join()
    print(json.dumps({"caught": interrupter.caught, **report(work)}), flush=True)


def report(work: Work) -> dict[str, object]:
    """Return what is left of interrupted calls; ends the process when anything waits for ever."""
    store, hot = work.store, work.store.hot
    gc.collect()
    flushed = store.flush(30)
    stats = store.stats()
    hot.check_integrity()
    store.cold.check_integrity()
    books = {
        "requests": work.requests,
        "restored": work.restored,
        "wrong": work.wrong,
        "flushed": flushed,
        "reserved_bytes": hot._reserved,
        "pinned_pages": sum(entry.tier == "pending" for entry in hot.entries()),
        "pending_bytes": stats.writer.pending_bytes if stats.writer else 0,
        "waiting_bytes": store.restores.nbytes,
        "live_sessions": stats.requests.live_sessions,
        "snapshot_bytes": stats.snapshots.live_bytes,
        "snapshots": stats.snapshots.live,
        "handler_is_back": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    }
    began = time.monotonic()
    closed = store.close(20)
    return {**books, "closed": closed, "close_seconds": time.monotonic() - began}


if __name__ == "__main__":
    main(*sys.argv[1:])
