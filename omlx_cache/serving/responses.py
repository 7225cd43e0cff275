"""mlx-lm's ResponseGenerator, with a measurement and a log line for each request."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from mlx_lm.server import ModelProvider, ResponseGenerator

from omlx_cache.integrations.mlx_lm import TieredPromptCache
from omlx_cache.integrations.mlx_lm.prompt_cache import Fetched
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)


class MeasuredPromptCache(TieredPromptCache):
    """Remembers what its latest fetches found, until the request that asked takes it.

    `_reports` is written by the generation thread and read by the handlers': single dict
    operations, which are atomic.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reports: dict[tuple[int, int], Fetched] = {}

    def fetch_nearest_cache(self, model: Any, tokens: Any) -> tuple[list[Any] | None, list[int]]:
        result = super().fetch_nearest_cache(model, tokens)
        if self.last is not None:
            self._reports[_name(tokens)] = self.last
        while len(self._reports) > 256:
            self._reports.pop(next(iter(self._reports)), None)
        return result

    def take_report(self, tokens: Any) -> Fetched | None:
        """Return what the last fetch of these tokens found, once."""
        return self._reports.pop(_name(tokens), None)


class MeasuredResponseGenerator(ResponseGenerator):  # type: ignore[misc]
    """Logs each request when its last token is out, or when its client has gone.

    The prefill rate that `saved_seconds` is computed from is measured here: tokens computed
    over the time from the look-up to the first token.
    """

    def __init__(
        self, provider: ModelProvider, cache: MeasuredPromptCache, store: BlockStore
    ) -> None:
        self._store = store
        self._measured = cache
        super().__init__(provider, cache)

    def generate(
        self,
        request: Any,
        generation_args: Any,
        progress_callback: Callable[[int, int], None] | None = None,
    ) -> tuple[Any, Iterator[Any]]:
        began = time.perf_counter()
        context, responses = super().generate(request, generation_args, progress_callback)
        return context, self._measure(context, responses, began)

    def _measure(self, context: Any, responses: Iterator[Any], began: float) -> Iterator[Any]:
        ready = time.perf_counter()
        first: float | None = None
        count = 0
        try:
            for response in responses:
                if first is None:
                    first = time.perf_counter()
                    self._count_prefill(context, first - ready)
                count += 1
                yield response
        finally:
            self._report(context, count, began, first)

    def _count_prefill(self, context: Any, seconds: float) -> None:
        computed = len(context.prompt) - max(0, context.prompt_cache_count)
        self._store.counters.add(prefilled_tokens=computed)
        self._store.counters.add_seconds("prefill", seconds)

    def _report(self, context: Any, count: int, began: float, first: float | None) -> None:
        now = time.perf_counter()
        prompt = len(context.prompt)
        restored = max(0, context.prompt_cache_count)
        found = self._measured.take_report(context.prompt)
        cold = 0 if found is None else found.cold_tokens
        reason = "" if found is None or found.miss_reason is None else f" ({found.miss_reason})"
        _log.info(
            "request: %d tokens in, %d restored (%d hot, %d cold), %d recomputed%s, %d out, "
            "first token %.3f s, total %.3f s",
            prompt,
            restored,
            restored - cold,
            cold,
            prompt - restored,
            reason,
            count,
            (first or now) - began,
            now - began,
        )


def _name(tokens: Any) -> tuple[int, int]:
    return len(tokens), hash(tuple(tokens))
