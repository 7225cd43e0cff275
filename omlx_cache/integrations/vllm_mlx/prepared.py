"""Entries that are copied now and published later, and what vllm-mlx keeps beside an entry."""

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx_cache.integrations.naming import digest_of
from omlx_cache.kv.buffers import shared

BESIDES = 16
"""How many prompts' last logits are remembered; each is as long as the vocabulary."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Caches that hold exactly these tokens and see no later write of whoever gave them."""

    tokens: tuple[int, ...]
    cache: list[Any]
    auxiliary: Mapping[str, Any] | None

    @property
    def memory_bytes(self) -> int:
        """Bytes that the caches keep alive until they are published."""
        return sum(cache.nbytes for cache in self.cache)


def independent(prompt_cache: Sequence[Any]) -> list[Any]:
    """Return caches of the same classes and content; what is written to the one is not seen in the
    other. Evaluates and copies nothing: MLX copies a buffer when one of its two owners writes."""
    return [_independent(cache) for cache in prompt_cache]


def _independent(cache: Any) -> Any:
    twin = copy.copy(cache)
    for name, value in vars(cache).items():
        setattr(twin, name, shared(value))
    children = getattr(cache, "caches", None)
    if children:
        twin.caches = type(children)(map(_independent, children))
    return twin


class Besides:
    """What is kept beside whole prompts, by their tokens; the least recently used are forgotten.

    Not thread-safe: its owner has a lock.
    """

    def __init__(self, most: int = BESIDES) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, dict[str, Any]] = OrderedDict()

    def keep(self, tokens: Sequence[int], auxiliary: Mapping[str, Any]) -> None:
        """Keep a copy of some arrays; evaluates them."""
        copies = shared(dict(auxiliary))
        mx.eval([value for value in copies.values() if isinstance(value, mx.array)])
        self._kept[digest_of(tokens)] = copies
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, tokens: Sequence[int]) -> dict[str, Any] | None:
        """Return what was kept beside exactly these tokens."""
        kept = self._kept.get(digest_of(tokens)) if self._kept else None
        if kept is None:
            return None
        self._kept.move_to_end(digest_of(tokens))
        return dict(kept)

    def forget(self, tokens: Sequence[int]) -> None:
        self._kept.pop(digest_of(tokens), None)

    def clear(self) -> None:
        self._kept.clear()
