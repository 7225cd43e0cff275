"""Replays requests through the tiers as sessions do: the same calls in the same order, in virtual
time, without a model. A request is one moment."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from omlx_cache.simulate.tiers import SimulatedPages
from omlx_cache.simulate.traces import Request, Workload
from omlx_cache_storage.eviction.order import is_ended
from omlx_cache_storage.page import PageId
from omlx_cache_storage.tiers import Tiers

STEP_TOKENS = 2048
"""Tokens of a prompt that servers compute at once."""


@dataclass(slots=True)
class Replayed:
    """Of a request's `found` leading pages `hot_tokens` and `cold_tokens` are restored;
    `refused_pages` of its own found no room."""

    found: int
    hot_tokens: int
    cold_tokens: int
    cold_bytes: int
    stored: Sequence[PageId] = ()
    refused_pages: int = 0

    @property
    def tokens(self) -> int:
        return self.hot_tokens + self.cold_tokens


@dataclass(slots=True)
class _Sequence:
    chain: list[int]
    ids: list[PageId]
    restored: int
    began: int
    stamp: int
    own: set[PageId]
    new: list[PageId] = field(default_factory=list)
    finishing: bool = False
    refused: bool = False


class Replay:
    """Serves requests from tiers whose writer writes at once, and whose clock the caller sets. Use
    it on one thread. `step` tokens of a prompt are computed at once."""

    def __init__(
        self,
        tiers: Tiers,
        workload: Workload,
        pages: SimulatedPages,
        step: int = STEP_TOKENS,
    ) -> None:
        self.tiers = self._tiers = tiers
        self._pages = pages
        self._size = workload.block_size
        self._step = step

    def serve(self, request: Request) -> Replayed:
        """Look a prompt up, restore it, and store the new pages of its sequence."""
        tiers, pages = self._tiers, self._pages
        ids = [pages.ids[page] for page in request.pages]
        stamp = tiers.stamp()
        known = tiers.find_all(ids[: request.asked])
        found = next((at for at, one in enumerate(known) if one is None), request.asked)
        cold = [
            at for at, one in enumerate(known[:found]) if one is not None and one.tier == "cold"
        ]
        served = self._restore(request, ids, found, cold, stamp)
        sequence = _Sequence(request.pages, ids, found, stamp, stamp, set(ids[:found]))
        self._advance(request, sequence)
        served.refused_pages = self._finish(sequence, request.ended)
        served.stored = sequence.new
        return served

    def _restore(
        self, request: Request, ids: Sequence[PageId], found: int, cold: Sequence[int], stamp: int
    ) -> Replayed:
        """Promote the found pages to memory, where that has room, and mark them as used."""
        tiers, pages = self._tiers, self._pages
        for at in cold:
            page = pages.page(request.pages, at)
            room = tiers.reserve(page.meta.nbytes, ids[at])
            if not room:
                # They are of one size: the others find none either, and asking changes nothing.
                break
            tiers.put(page, room)
        if found:
            tiers.touch(ids[:found], stamp)
        # The last token of a prompt is computed in any case.
        tokens = min(found * self._size, max(0, request.tokens_in - 1))
        from_disk = min(tokens, len(cold) * self._size)
        return Replayed(found, tokens - from_disk, from_disk, len(cold) * pages.nbytes)

    def _advance(self, request: Request, sequence: _Sequence) -> None:
        """Store blocks as they are completed: of the prompt by steps, of the answer one by one. A
        block without room is tried again with the next."""
        done, asked, whole = sequence.restored, request.asked, len(sequence.chain)
        first = min(done * self._size + self._step, asked * self._size)
        steps = range(first, asked * self._size, self._step) if done < asked else ()
        for end in (*(tokens // self._size for tokens in steps), *range(asked, whole + 1)):
            if end > done:
                done += self._store(sequence, range(done, end))
                if done < end and self._tiers.cold is None:
                    # Pages for which memory alone has no room now have none a step later either.
                    return

    def _finish(self, sequence: _Sequence, ended: str) -> int:
        """Mark the whole sequence as used together, store its remaining pages, and return how many
        found no room."""
        tiers, ids = self._tiers, sequence.ids
        sequence.finishing = True
        since = sequence.stamp
        sequence.stamp = tiers.stamp(ended=ended if is_ended(ended) else None)
        tiers.touch(ids, sequence.stamp, since_ns=since, used=False)
        missing = [at for at, known in enumerate(tiers.find_all(ids)) if known is None]
        left_out = missing[self._store(sequence, missing) :]
        if sequence.refused:
            tiers.refuse([ids[at] for at in left_out], sequence.began)
        return len(left_out)

    def _store(self, sequence: _Sequence, places: Sequence[int]) -> int:
        """Store pages in order until one has no room; return how many had."""
        tiers, nbytes = self._tiers, self._pages.nbytes
        for stored, at in enumerate(places):
            page, position = sequence.ids[at], (at + 1) * self._size
            info = tiers.find(page)
            # One that only the disk has is computed again, and so comes to memory.
            again = tiers.retains and not sequence.finishing
            if info is None or (again and info.tier != "hot"):
                room = tiers.admit(nbytes, sequence.own, position=position)
                if not room and not room.refused and sequence.finishing:
                    # The writer is never behind: what finds no room now finds none later.
                    room = tiers.admit(nbytes, sequence.own, queue=False, position=position)
                sequence.refused = room.refused
                if room:
                    made = self._pages.page(sequence.chain, at)
                    if tiers.put(made, room, sequence.stamp, began_ns=sequence.began):
                        sequence.new.append(page)
                elif tiers.find(page) is None:
                    return stored
            sequence.own.add(page)
        return len(places)
