"""Requests as a simulation sees them: when, how many tokens, and which pages; no text."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple


class Request(NamedTuple):
    """One request at `at` seconds. `pages` are the complete pages of its sequence, root first; the
    first `asked` of them are the prompt's. `ended` says how its answer ended, and `session` which
    one it is of, if that is known."""

    at: float
    pages: list[int]
    asked: int
    tokens_in: int
    tokens_out: int
    ended: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their times, of pages numbered from 0, each of `block_size` tokens.
    `bytes_per_token` is what the trace says of its model, 0 when it does not."""

    requests: list[Request]
    pages: int
    block_size: int
    bytes_per_token: int = 0

    @property
    def tokens_in(self) -> int:
        return sum(request.tokens_in for request in self.requests)

    @property
    def references(self) -> int:
        """How many pages are asked for in all."""
        return sum(request.asked for request in self.requests)

    @property
    def seconds(self) -> float:
        """The time from the first request to the last."""
        return self.requests[-1].at - self.requests[0].at if self.requests else 0.0


class PageNumbers:
    """Numbers pages as they are met: equal blocks after equal blocks are one page.

    Mutable by its owner: `_known`.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, what: Hashable) -> int:
        """Return the number of the page that something stands for."""
        return self._known.setdefault(what, len(self._known))


class Grouping(NamedTuple):
    """How a trace's blocks become pages: `joined` blocks are one page, or one is `split` pages."""

    joined: int
    split: int


def grouping(block_tokens: int, block_size: int) -> Grouping | None:
    """Return how blocks of so many tokens become pages of `block_size`, None when they cannot."""
    if block_size % block_tokens == 0:
        return Grouping(block_size // block_tokens, 1)
    if block_tokens % block_size == 0:
        return Grouping(1, block_tokens // block_size)
    return None


def pages_of(
    blocks: list[Hashable], tokens: int, how: Grouping, block_size: int, numbers: PageNumbers
) -> list[int]:
    """Return the complete pages of a sequence of `tokens`, whose blocks are named by what they are
    with all before them, or by what they are alone."""
    pages: list[int] = []
    parent = -1
    joined, split = how
    for page in range(min(tokens // block_size, len(blocks) * split // joined)):
        if joined > 1:
            what: Hashable = (parent, *blocks[page * joined : (page + 1) * joined])
        else:
            what = (parent, blocks[page // split], page % split)
        parent = numbers.of(what)
        pages.append(parent)
    return pages
