"""Which inputs the model failed at, so that a client that asks again does not have them computed
again and again."""

import hashlib
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple, NewType

from omlx_cache.integrations.mlx_lm.server.refusals import ComputationFailed

InputDigest = NewType("InputDigest", bytes)

MOST = 256
FIRST_SECONDS = 10.0
LONGEST_SECONDS = 3600.0


def digest_of(model: object, tokens: Iterable[int]) -> InputDigest:
    """Return what names an input: the model's key and the tokens, image ids among them."""
    digest = hashlib.sha256(repr(model).encode())
    digest.update(array("q", tokens).tobytes())
    return InputDigest(digest.digest())


class _Failure(NamedTuple):
    times: int
    until: float
    text: str


class FailedInputs:
    """Refuses an input that failed for a while, twice as long each time: an hour at most, since
    memory may have been short for another reason. Knows the last `MOST`; use it on one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[InputDigest, _Failure] = OrderedDict()

    def check(self, digest: InputDigest) -> None:
        """Raise ComputationFailed, with the error of last time, while the input is refused."""
        failure = self._failures.get(digest)
        left = failure.until - self._clock() if failure is not None else 0.0
        if failure is not None and left > 0:
            text = f"{failure.text}; this input failed before, and is not tried for {left:.0f} s"
            raise ComputationFailed(text, left)

    def add(self, digest: InputDigest, text: str) -> None:
        """Note that an input failed now."""
        before = self._failures.pop(digest, None)
        count = 1 + (before.times if before is not None else 0)
        wait = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(count - 1, 20))
        self._failures[digest] = _Failure(count, self._clock() + wait, text)
        while len(self._failures) > MOST:
            self._failures.popitem(last=False)
