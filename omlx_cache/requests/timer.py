"""Measuring what is computed of a prompt, for the loops that feed it."""

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from omlx_cache.requests.log import AskedRequest


class PromptTimer:
    """Tells a request how many tokens of its prompt were computed, and in which time.

    Mutable, by the model's thread: `_fed`, where a chunk began and when.
    """

    def __init__(self, asked: AskedRequest, tokens: int) -> None:
        self._asked = asked
        self._tokens = tokens
        self._fed: tuple[int, float] | None = None

    def begin(self, position: int) -> None:
        """Say that the tokens from `position` on are fed from now on."""
        self._fed = position, time.perf_counter()

    def reach(self, position: int) -> None:
        """Say that the tokens before `position` have been computed; counts them if a chunk began.

        The last token of a prompt, alone, is a step of decoding and takes no time of its own.
        """
        if self._fed is None:
            return
        (start, began), self._fed = self._fed, None
        stop = min(position, self._tokens)
        if stop > start:
            alone = start == self._tokens - 1
            self._asked.computed(stop - start, 0.0 if alone else time.perf_counter() - began)

    def reach_end(self) -> None:
        """Say that all of the prompt has been computed, once or again."""
        self.reach(self._tokens)


class PromptProgress(Protocol):
    """What mlx-lm's batches say of a prompt after a step: tokens computed, and of how many."""

    @property
    def uid(self) -> Hashable: ...
    @property
    def progress(self) -> tuple[int, int]: ...
    @property
    def end_of_prompt(self) -> bool: ...


class BatchTimer:
    """Tells requests what the steps of a batch have computed of their prompts.

    Rows that share a step share its time, which the store's sums count once. `asked` gives a row's
    request. Mutable, by the model's thread: `_fed`, tokens by row.
    """

    def __init__(self, asked: Callable[[Hashable], AskedRequest | None]) -> None:
        self._asked = asked
        self._fed: dict[Hashable, int] = {}

    def step(self, prompts: Iterable[PromptProgress], seconds: float) -> None:
        """Count what a step of so many seconds, which ends now, has computed."""
        for response in prompts:
            fed, total = response.progress
            before = self._fed.get(response.uid, 0)
            # Less than before: the row was begun again after an error.
            new = fed - before if fed >= before else fed
            if response.end_of_prompt:
                self.forget(response.uid)
            else:
                self._fed[response.uid] = fed
            asked = self._asked(response.uid)
            if asked is not None and new > 0:
                asked.computed(new, 0.0 if new == 1 and fed == total else seconds)

    def forget(self, uid: Hashable) -> None:
        """Drop a row that has left the batch."""
        self._fed.pop(uid, None)
