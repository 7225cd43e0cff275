"""The requests of a generator that are under way: what is told of them to the store's log."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from omlx_cache.requests.log import AskedRequest


class Asked(NamedTuple):
    """A request that was looked up: its record, its prompt, and the prompt's hash."""

    record: AskedRequest
    prompt: list[int]
    extra_hash: int


class UnderWay:
    """By uid, what was asked, and the tokens that were answered. Mutable, by the generation thread:
    `_asked` and `_answered`."""

    def __init__(self) -> None:
        self._asked: dict[int, Asked] = {}
        self._answered: dict[int, list[int]] = {}

    def begin(self, uid: int, asked: Asked) -> None:
        self._asked[uid] = asked

    def sequence(self, uid: int, *more: int) -> tuple[list[int], int] | None:
        """Return a request's prompt and its answer so far, with `more` of it, and the prompt's
        hash; None for one that is not known."""
        asked = self._asked.get(uid)
        if asked is None:
            return None
        return [*asked.prompt, *self._answered.get(uid, ()), *more], asked.extra_hash

    def computed(self, progress: Iterable[Any]) -> None:
        """Say what the prompts of a batch that is done took: a row's share of their time is that of
        its tokens."""
        rows = list(progress)
        everything = sum(row.prompt_tokens - row.cached_tokens for row in rows)
        for row in rows:
            asked = self._asked.get(row.uid)
            own = row.prompt_tokens - row.cached_tokens
            if asked is not None and own > 0:
                # A last token alone is a step of decoding.
                seconds = 0.0 if own == 1 else row.prompt_time * own / everything
                asked.record.computed(own, seconds)

    def answered(self, responses: Iterable[Any]) -> None:
        """Count tokens of answers, and end those that are done."""
        for response in responses:
            uid = response.uid
            self._answered.setdefault(uid, []).append(int(response.token))
            if response.finish_reason is not None:
                self.end(uid)

    def end(self, uid: int) -> None:
        """Say that a request is done, or was given up; nothing for one that is not known."""
        answer, asked = self._answered.pop(uid, []), self._asked.pop(uid, None)
        if asked is not None:
            asked.record.ended(len(answer))
