"""The requests of a generator that are under way: what is told of them to the store's log."""

from collections.abc import Iterable
from typing import Any

from omlx_cache.requests.log import AskedRequest


class UnderWay:
    """By uid, what was asked, and how many tokens were answered. Mutable, by the generation thread:
    `_asked` and `_answered`."""

    def __init__(self) -> None:
        self._asked: dict[int, AskedRequest] = {}
        self._answered: dict[int, int] = {}

    def begin(self, uid: int, asked: AskedRequest) -> None:
        self._asked[uid] = asked

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
                asked.computed(own, seconds)

    def answered(self, responses: Iterable[Any]) -> None:
        """Count tokens of answers, and end those that are done."""
        for response in responses:
            uid = response.uid
            self._answered[uid] = self._answered.get(uid, 0) + 1
            if response.finish_reason is not None:
                self.end(uid)

    def end(self, uid: int) -> None:
        """Say that a request is done, or was given up; nothing for one that is not known."""
        count, asked = self._answered.pop(uid, 0), self._asked.pop(uid, None)
        if asked is not None:
            asked.ended(count)
