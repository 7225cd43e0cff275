"""Replays traces against one small store for hours, with a share of one core."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx

from kit.storage import open_store
from omlx_cache import BlockStore, PrefixCache

from ..subjects import MIXTURES, Weights, feed, wrong_in
from ..truth import Truth
from ..world import BLOCK, KIB
from .samples import TOLERANCES, Sample, is_flat, table, take, write_csv
from .traces import TracedRequest, requests_of

NAMES = ("dense", "windowed", "hybrid")
CACHE_LIMIT = 64 * 2**20


class Soak:
    """A store, three models and the requests of traces, over and over."""

    def __init__(
        self, traces: Sequence[Path], seed: int, base: Path | None, *, share: float, every: float
    ) -> None:
        # Reading takes most of a minute.
        self._requests = [requests_of(path) for path in traces]
        self._seed = seed
        self._base = base
        self._share, self._every = share, every
        self._samples: list[Sample] = []
        self._asked = self._restored = self._count = self._wrong = self._over = 0

    def run(self, seconds: float, csv: Path | None) -> tuple[str, bool]:
        """Return the summary, and whether all was right and flat; Ctrl-C ends it earlier."""
        os.nice(10)
        mx.set_cache_limit(CACHE_LIMIT)
        with tempfile.TemporaryDirectory(prefix="omlx-soak-", dir=self._base) as name:
            store = open_store(
                Path(name) / "cold",
                block_size=BLOCK,
                hot_bytes=768 * KIB,
                queue_bytes=256 * KIB,
                cold_bytes=24 * 1024 * KIB,
                snapshot_stride=128,
                durability="fsync",
            )
            store.restores.limit_bytes = 1024 * KIB
            with store:
                try:
                    self._replay(store, seconds, csv)
                except KeyboardInterrupt:
                    sys.stderr.write("interrupted: what was done until now is reported\n")
        if csv is not None:
            write_csv(self._samples, csv)
        return self._summary()

    def _replay(self, store: BlockStore, seconds: float, csv: Path | None) -> None:
        caches = {
            name: PrefixCache(Weights(name, self._seed), store, make_cache=MIXTURES[name].make)
            for name in NAMES
        }
        began, due, told = time.monotonic(), 0.0, 0.0
        for request in self._stream():
            now = time.monotonic() - began
            if now >= due:
                self._sample(store, now, csv)
                due += self._every
            if now - told > 10:
                told = now
                sys.stderr.write(f"{now:7.0f} s  {self._count:,} requests, {self._wrong} wrong\n")
            if now > seconds:
                return
            used = time.process_time()
            name = NAMES[request.lane % len(NAMES)]
            self._one(caches[name], MIXTURES[name].name, request)
            # Threads of the store work on meanwhile: what they take is paid with the next request.
            time.sleep((time.process_time() - used) * (1 / self._share - 1))

    def _stream(self) -> Iterator[TracedRequest]:
        """Yield the requests of all traces side by side, without end."""
        streams = [iter(()) for _ in self._requests]
        while True:
            for index, requests in enumerate(self._requests):
                request = next(streams[index], None)
                if request is None:
                    streams[index] = iter(requests)
                    request = next(streams[index])
                yield request

    def _one(self, cache: PrefixCache, name: str, request: TracedRequest) -> None:
        answer = [50_001 + i for i in range(request.answer)]
        tokens = [*request.tokens, *answer]
        truth = Truth(tokens)
        begun = cache.begin(request.tokens) if self._count % 3 == 0 else None
        with cache.session(request.tokens, begun=begun) as session:
            position, caches = session.cached_tokens, session.prompt_cache
            self._wrong += bool(wrong_in(caches, truth, position))
            self._asked += len(request.tokens)
            self._restored += position
            for chunk in session.prefill_chunks(step=512):
                feed(caches, truth, position, position + len(chunk))
                position += len(chunk)
            feed(caches, truth, position, len(tokens))
            session.extend(answer)
            session.commit()
        self._count += 1

    def _sample(self, store: BlockStore, seconds: float, csv: Path | None) -> None:
        sample = take(store, round(seconds, 1), self._count)
        self._samples.append(sample)
        stats = store.stats()
        self._over += sample.directory_bytes > stats.cold.limit_bytes
        self._over += sample.cold_peak_bytes > stats.cold.limit_bytes
        self._over += sample.hot_peak_bytes > stats.hot.limit_bytes
        if csv is not None:
            write_csv(self._samples, csv)

    def _summary(self) -> tuple[str, bool]:
        flat = all(is_flat(self._samples, name) for name in TOLERANCES)
        minutes = self._samples[-1].seconds / 60
        words = (
            f"{minutes:.0f} minutes, {self._count:,} requests, {self._asked:,} tokens asked for, "
            f"{self._restored / max(1, self._asked):.0%} of them restored; {self._wrong} wrong "
            f"restores, {self._over} samples over a budget, {len(self._samples)} samples.\n\n"
        )
        return words + table(self._samples), flat and not self._wrong and not self._over
