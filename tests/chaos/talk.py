"""Conversations that grow, branch, repeat and begin, drawn from a seed."""

import random
from typing import NamedTuple

SALTS = (None, "a", "b", "c")
_KEPT = 90


class Asked(NamedTuple):
    """A prompt and the salt that it comes under."""

    tokens: tuple[int, ...]
    salt: str | None


class Talk:
    """The conversations of one thread; those of one `topic` begin alike in all threads."""

    def __init__(self, draw: random.Random, topic: str, longest: int = 180) -> None:
        self._draw = draw
        self._longest = longest
        self._told: list[Asked] = []
        common = random.Random(topic)
        self._system = [common.randrange(1, 50_000) for _ in range(40)]

    def next(self) -> Asked:
        """Return what is asked next."""
        draw = self._draw
        known = draw.choice(self._told) if self._told else None
        kind = draw.choice(["grow", "grow", "branch", "repeat", "begin", "begin", "other salt"])
        if known is None or kind == "begin":
            shared = self._system[: draw.choice([0, 16, 37, 40])]
            return Asked((*shared, *self._new(draw.randrange(2, 70))), draw.choice(SALTS))
        if kind == "repeat":
            return known
        if kind == "other salt":
            return Asked(known.tokens, draw.choice(SALTS))
        start = known.tokens
        if kind == "branch":
            start = start[: draw.randrange(1, len(start) + 1)]
        tokens = (*start, *self._new(draw.randrange(1, 50)))
        return Asked(tokens[: self._longest], known.salt)

    def answer(self, most: int) -> list[int]:
        return self._new(self._draw.randrange(most + 1))

    def told(self, asked: Asked) -> None:
        """Remember a conversation as it is now; the oldest make room."""
        if len(asked.tokens) < self._longest:
            self._told.append(asked)
        if len(self._told) > _KEPT:
            self._told.pop(self._draw.randrange(len(self._told)))

    def _new(self, count: int) -> list[int]:
        return [self._draw.randrange(1, 50_000) for _ in range(count)]
