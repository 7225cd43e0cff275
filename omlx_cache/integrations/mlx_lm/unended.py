"""Unended: requests of a server that says what it stores, and never that a request has ended."""

from collections import deque

import numpy as np

from omlx_cache.requests.log import AskedRequest
from omlx_cache_storage.keys import Tokens

MOST = 64
"""What ended otherwise, by an abort or an error, is among them until newer ones push it out."""


class Unended:
    """Knows the prompts that were asked for, and ends a request when its prompt is stored with an
    answer behind it. Of one thread at a time, which alone changes `_requests`."""

    def __init__(self) -> None:
        self._requests: deque[tuple[Tokens, AskedRequest | None]] = deque(maxlen=MOST)

    def begin(self, prompt: Tokens, asked: AskedRequest | None) -> None:
        """Know a prompt; `asked` is None where something else ends the request."""
        self._requests.append((prompt, asked))

    def stored(self, tokens: Tokens) -> int:
        """End the request that these tokens answer, if one does: of several the one with the
        longest prompt, and of equal ones that which came first. Return the length of the longest
        prompt that they begin with, 0 without one."""
        begun = [
            request
            for request in self._requests
            if 0 < len(request[0]) <= len(tokens)
            and np.array_equal(tokens[: len(request[0])], request[0])
        ]
        answered = [request for request in begun if len(request[0]) < len(tokens)]
        if answered:
            prompt, asked = found = max(answered, key=lambda request: len(request[0]))
            self._requests = deque((one for one in self._requests if one is not found), MOST)
            if asked is not None:
                asked.ended(len(tokens) - len(prompt))
        return max((len(prompt) for prompt, _ in begun), default=0)
