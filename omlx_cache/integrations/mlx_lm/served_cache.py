"""ServedPromptCache: the prompt cache of mlx-lm's server, which follows the server's computing."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from omlx_cache.adapters.registry import first_tokens
from omlx_cache.integrations.mlx_lm.following import Following
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.mlx_lm.tokenizer_cache import PackedTokens
from omlx_cache.requests.log import AskedRequest
from omlx_cache_storage.eviction.order import Ended


@dataclass(slots=True)
class LateCaches:
    """Stands in for a row's caches where segments of its prompt end. `inserts` are called later,
    with caches of so many tokens."""

    inserts: list[tuple[int, Callable[[Any], None]]] = field(default_factory=list)

    def insert(self, caches: Sequence[Any]) -> None:
        for count, insert in self.inserts:
            insert([first_tokens(cache, count) for cache in caches])


class ServedPromptCache(TieredPromptCache):
    """Also stores sequences that are computed alone, and learns how answers end. On the generation
    thread. `key` is the model of the latest request, `_prompt` its prompt, `_how_ended` the end of
    the answer that is inserted next, and `_lent` the caches that mlx-lm feeds alone."""

    insert_ends_request = False

    def __init__(self, *args: Any, fetched: Callable[[AskedRequest], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self.key: Any = None
        self._how_ended: Ended | None = None
        self._prompt = PackedTokens(array("i"))
        self._fetched = fetched
        self._lending = False
        self._lent: _Lent | None = None

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Follow the caches that are fetched in this block."""
        self._lending = True
        try:
            yield
        finally:
            self._lending = False
            if self._lent is not None:
                for following in self._lent.followed:
                    following.close()
            self._lent = None

    def fetch_nearest_cache(self, model: Any, tokens: Any) -> tuple[list[Any] | None, list[int]]:
        self.key = model
        if isinstance(tokens, PackedTokens):
            self._prompt = tokens
        caches, rest = super().fetch_nearest_cache(model, tokens)
        if self.last is not None:
            self._fetched(self.last)
        if self._lending and (fresh := self.fresh(model)):
            start = len(tokens) - len(rest)
            caches = fresh if caches is None else caches
            self._lent = _Lent(
                list(tokens), caches, start, self.followers(model, tokens[:start], start)
            )
        return caches, rest

    def insert_cache(self, model: Any, tokens: Any, prompt_cache: Any, **options: Any) -> None:
        if isinstance(prompt_cache, LateCaches):
            insert = partial(self.insert_cache, model, tokens, **options)
            prompt_cache.inserts.append((len(tokens), insert))
            return
        ended, self._how_ended = self._how_ended, None
        tokens = self._prompt.as_tokens(tokens)
        super().insert_cache(model, tokens, prompt_cache, ended=ended, **options)

    def note_end(self, how_ended: Ended | None) -> None:
        self._how_ended = how_ended

    def refetch(self, tokens: list[int]) -> tuple[list[Any] | None, list[int]]:
        """Return the stored caches of a sequence that is computed again after an error."""
        found = super().fetch_nearest_cache(self.key, tokens)
        if self.last is not None:
            self.last.ended(0)
        return found

    def prefilled(self, count: int) -> None:
        """Store the blocks of the lent caches, now that `count` tokens were fed to them."""
        lent = self._lent
        if lent is None or not 0 < count < len(lent.tokens) - lent.start:
            return
        prefix = lent.tokens[: lent.start + count]
        for following in lent.followed:
            following.caches(prefix, lent.caches, keep=len(prefix) == len(lent.tokens) - 1)

    def follow(self, tokens: Sequence[int]) -> Following | None:
        found = self.followers(self.key, self._prompt.as_tokens(tokens), 0)
        return found[0] if len(found) == 1 else None

    def room_for(self, count: int) -> str:
        """Return in words which of so many tokens the budgets cannot hold; "" for none."""
        lanes = self.lanes_of(self.key)
        fit = lanes[0].view.kinds.budgets.fit() if lanes else None
        block = self._store.settings.block_size
        if fit is None or count // block * block <= fit.tokens:
            return ""
        if fit.in_memory > fit.tokens and count // block * block <= fit.in_memory:
            return f", {count - fit.tokens} not on the disk (no_room: {fit.setting})"
        return f", {count - max(fit.tokens, fit.in_memory)} not kept (no_room: {fit.setting})"


class _Lent(NamedTuple):
    """Caches that mlx-lm feeds, which hold `start` of the tokens at first."""

    tokens: list[int]
    caches: list[Any]
    start: int
    followed: Sequence[Following]
