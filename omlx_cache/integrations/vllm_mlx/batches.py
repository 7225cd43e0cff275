"""The rows of a batch, stored while the scheduler computes them.

The scheduler itself stores a prompt after its first token, for some kinds of cache only, and a
sequence at its end. That is too late for a client that disconnects, and gives a model with windows
or recurrent state one restore point.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from omlx_cache.integrations.mlx_lm.following import FollowedRows
from omlx_cache.integrations.rows import row_caches, segments_of
from omlx_cache.integrations.vllm_mlx.prefix_cache import TieredPrefixCache

_log = logging.getLogger(__name__)

NEEDED = ("_prompt_batch", "_generation_batch", "_unprocessed_sequences", "insert_segments")


Parts = Callable[[list[int]], Iterable[int]]
"""Says where the parts of a prompt's chat end."""


def follow_rows(generator: Any, cache: TieredPrefixCache, parts: Parts) -> Any:
    """Return the generator, whose rows are stored from now on, unless it does not say where they
    are. Their pages are restored for single requests: so a model whose states take padding for
    tokens computes its prompts one after the other. Call it on the model's thread."""
    if not all(hasattr(generator, name) for name in NEEDED):
        _log.warning("requests are stored when they end: an unknown kind of batch generator")
        return generator
    if not cache.heeds_padding:
        generator.prefill_batch_size = 1
    rows = _Rows(generator, cache, parts)
    generator.insert, generator.next, generator.remove = rows.insert, rows.next, rows.remove
    weakref.finalize(generator, rows.end).atexit = False
    return generator


class _Rows:
    """Follows each row from its insertion to its end, on the model's thread, which alone changes
    `_stops`, by uid. Does not keep the generator alive, which holds its caches."""

    def __init__(self, generator: Any, cache: TieredPrefixCache, parts: Parts) -> None:
        self._generator = weakref.ref(generator)
        self._kind: Any = type(generator)
        self._cache = cache
        self._parts = parts
        self._followed = FollowedRows(cache.follow)
        self._stops: dict[int, frozenset[int]] = {}

    def insert(
        self, prompts: Sequence[Sequence[int]], *, caches: Any = None, **options: Any
    ) -> list[int]:
        """Insert prompts, interrupted at their restore points, with the tokens of their caches."""
        generator: Any = self._generator()
        given = caches or [None] * len(prompts)
        held = [self._cache.held_by(one) for one in given]
        pairs = list(zip(held, map(list, prompts), strict=True))
        stops = [self._wanted(before, prompt) for before, prompt in pairs]
        uids: list[int]
        try:
            uids = self._kind.insert_segments(
                generator,
                [segments_of([*b, *p], len(b), s) for (b, p), s in zip(pairs, stops, strict=True)],
                caches=[row_caches(generator, one) for one in given],
                all_tokens=held,
                **options,
            )
        except TypeError:
            _log.exception("prompts are computed without restore points")
            return list(self._kind.insert(generator, prompts, caches=caches, **options))
        self._stops.update(zip(uids, map(frozenset, stops), strict=True))
        return uids

    def _wanted(self, held: list[int], prompt: list[int]) -> list[int]:
        start, whole = len(held), [*held, *prompt]
        try:
            stops = self._cache.stops(whole, start, self._parts(whole))
        except Exception:
            _log.exception("a prompt is computed without restore points")
            return []
        return [stop for stop in stops if start < stop < start + len(prompt)]

    def next(self) -> Any:
        generator = self._generator()
        prompts, generated = self._kind.next(generator)
        try:
            going = [response.uid for response in prompts if not response.end_of_prompt]
            going += [response.uid for response in generated if response.finish_reason is None]
            for uid in going:
                self._followed.store(generator, uid, self._stops.get(uid, ()))
            for response in generated:
                if response.finish_reason is not None:
                    self._forget(response.uid)
        except Exception:
            _log.exception("what a step computed is stored when its requests end")
        return prompts, generated

    def remove(self, uids: Sequence[int], *args: Any, **options: Any) -> Any:
        """Drop rows; the blocks that they had completed stay stored."""
        for uid in uids:
            self._forget(uid)
        return self._kind.remove(self._generator(), uids, *args, **options)

    def end(self) -> None:
        for uid in list(self._stops):
            self._forget(uid)

    def _forget(self, uid: int) -> None:
        self._stops.pop(uid, None)
        self._followed.end(uid)
