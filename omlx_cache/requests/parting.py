"""What two prompts have in common behind the place where they part. Pure."""

import numpy as np

from omlx_cache_storage.keys import Tokens, shared_length

OPENING_TOKENS = 32
"""The longest opening of an answer that is recognised: role, reasoning tag, line ends."""
ALIKE_TOKENS = 32
"""So many equal tokens after a difference tell a changed line from another text."""
ALIKE_SHARE = 10
"""One part in so many of a prompt must come again, or moving the line would save next to nothing.
"""
ALIKE_COMPARED = 4096
"""Tokens behind the place by which the share is judged."""
PIECE_TOKENS = 4
"""So many tokens of an answer in a row are not in another text by chance."""
ANSWER_TOKENS, RETURNED_TOKENS = 16_384, 1024
"""How much of the end of an answer is looked for, and in how much of what follows."""


def goes_on_alike(one: Tokens, other: Tokens, at: int) -> bool:
    """True when a piece of one text comes again a little after the place where they part, and so
    does a tenth of the other text at least."""
    start = at + ALIKE_TOKENS
    piece = one[start : start + ALIKE_TOKENS]
    if len(piece) < ALIKE_TOKENS:
        return False
    if not _contains(other[at : start + 3 * ALIKE_TOKENS], piece):
        return False
    behind = one[at : at + ALIKE_COMPARED]
    pieces = _pieces(behind, ALIKE_TOKENS)[::ALIKE_TOKENS]
    found = np.isin(pieces, _pieces(other[at : at + 2 * ALIKE_COMPARED], ALIKE_TOKENS))
    return ALIKE_SHARE * float(found.mean()) * (len(one) - at) >= len(other)


def opening(theirs: Tokens, prompt: int, ours: Tokens, shared: int) -> int | None:
    """Return how far before the end of `theirs` prompt the texts part, when that is in what opens
    an answer or in the answer, and a piece of the answer comes again behind the place."""
    if shared == len(theirs) or len(ours) <= prompt:
        return None
    answer, stop = theirs[prompt:], len(ours)
    if shared >= prompt + PIECE_TOKENS:
        return prompt - shared
    if shared < prompt:
        most = min(OPENING_TOKENS, prompt, len(ours))
        ends = theirs[prompt - most : prompt][::-1], ours[len(ours) - most :][::-1]
        # An opening is common to all prompts; an answer that came back lies before this one's.
        common = shared_length(*ends)
        if prompt - shared > common:
            return None
        stop -= common
    returned = ours[min(shared, prompt) : min(stop, shared + RETURNED_TOKENS)]
    return prompt - shared if _comes_again(answer[-ANSWER_TOKENS:], returned) else None


def _comes_again(answer: Tokens, text: Tokens) -> bool:
    length = min(PIECE_TOKENS, len(answer))
    if length < 2:
        return False
    return bool(np.isin(_pieces(text, length), _pieces(answer, length)).any())


def _contains(text: Tokens, piece: Tokens) -> bool:
    around = text.astype(piece.dtype, copy=False).tobytes()
    found = around.find(piece.tobytes())
    while found >= 0 and found % piece.itemsize:
        found = around.find(piece.tobytes(), found + 1)
    return found >= 0


def _pieces(tokens: Tokens, length: int) -> Tokens:
    """Return a number for each run of so many tokens, the same for equal runs."""
    count = max(0, len(tokens) - length + 1)
    numbers = np.zeros(count, np.int64)
    for offset in range(length):
        numbers *= 1_000_003
        numbers += tokens[offset : offset + count]
    return numbers
