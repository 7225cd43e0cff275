"""What was computed before anybody asked for it, and how much of that was asked for since."""

import threading
from collections import deque
from dataclasses import dataclass

from omlx_cache.requests.explainer import compact
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, shared_length

REMEMBERED = 64
TOKENS = 1 << 22
"""Of all sequences together: 16 MiB."""


@dataclass(eq=False, slots=True)
class _Prepared:
    """Tokens of which those from `start` on were prepared; what is asked for moves that."""

    namespace: BlockKey
    tokens: Tokens
    start: int
    asked: bool = False


class PreparedSequences:
    """The sequences that were prepared last, bounded. Any thread may call. `_lock` guards `_latest`
    and what is in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: deque[_Prepared] = deque(maxlen=REMEMBERED)

    def add(self, chain: KeyChain, start: int, end: int) -> None:
        """Note that the tokens from `start` to `end` were prepared; one that goes on after an
        interruption is one sequence."""
        tokens = compact(chain.tokens[:end])
        with self._lock:
            for one in [*self._latest]:
                is_begun = one.namespace == chain.namespace and not one.asked
                if is_begun and start <= len(one.tokens) == shared_length(one.tokens, tokens):
                    self._latest.remove(one)
                    start = min(start, one.start)
            self._latest.append(_Prepared(chain.namespace, tokens, start))
            while sum(len(one.tokens) for one in self._latest) > TOKENS:
                self._latest.popleft()

    def ask(self, chain: KeyChain, restored: int) -> int:
        """Note what was restored of a prompt; return the prepared tokens that were restored
        first."""
        first = 0
        with self._lock:
            for one in self._latest:
                if one.namespace == chain.namespace and one.start < restored:
                    stop = shared_length(one.tokens, chain.tokens[:restored])
                    if stop > one.start:
                        first, one.start, one.asked = first + stop - one.start, stop, True
        return first

    def unasked(self, last: int) -> bool:
        """True when nothing was asked for of the `last` ones, and there were so many."""
        with self._lock:
            latest = list(self._latest)[-last:]
        return len(latest) == last and not any(one.asked for one in latest)

    def forget(self, namespace: BlockKey) -> None:
        with self._lock:
            left = [one for one in self._latest if one.namespace != namespace]
            self._latest = deque(left, REMEMBERED)
