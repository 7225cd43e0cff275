"""Replays requests through the tiers as sessions do: the same calls in the same order, in virtual
time, without a model.

A request is one moment: it looks its prompt up, restores what there is, stores what is new while it
computes that, and at its end the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from omlx_cache.simulate.pages import SimulatedPages
from omlx_cache.simulate.requests import Request, Workload
from omlx_cache.simulate.shared import SimulatedRemote
from omlx_cache_storage.hints import is_ended
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.page import PageId
from omlx_cache_storage.tiers import Tiers

STRIDE = 16
"""Blocks that are looked for at a time, at first; then twice as many each time."""
STEP_TOKENS = 2048
"""What servers compute of a prompt at once."""
RUN_PAGES = 64
"""Pages that are admitted together at most."""


@dataclass(slots=True)
class Served:
    """What one request was given."""

    hot_tokens: int = 0
    cold_tokens: int = 0
    cold_bytes: int = 0
    remote_tokens: int = 0
    remote_bytes: int = 0
    refused_pages: int = 0
    """Of its own, for which no room was found."""

    @property
    def tokens(self) -> int:
        return self.hot_tokens + self.cold_tokens + self.remote_tokens


@dataclass(slots=True)
class _Sequence:
    """One request's way: its chain, how much of it was restored, and what it has stored."""

    chain: list[int]
    ids: list[PageId]
    restored: int
    began: int
    stamp: int
    own: set[PageId]
    new: dict[PageId, None] = field(default_factory=dict)
    finishing: bool = False
    refused: bool = False


class Replay:
    """Serves requests from tiers whose writer writes at once. Use it on one thread.

    The caller sets the time of their clock. `step` tokens of a prompt are computed at once. What a
    `remote` store has behind the tiers' end is stored as if it was computed, and what is new is
    sent there. Mutable: what the tiers and the store hold.
    """

    def __init__(
        self,
        tiers: Tiers,
        workload: Workload,
        pages: SimulatedPages,
        step: int = STEP_TOKENS,
        remote: SimulatedRemote | None = None,
    ) -> None:
        self.tiers = self._tiers = tiers
        self._remote = remote
        self._pages = pages
        self._size = workload.block_size
        self._step = step

    def serve(self, request: Request) -> Served:
        """Look a request's prompt up, restore it, and store what is new of its sequence."""
        tiers, pages = self._tiers, self._pages
        ids = [pages.ids[page] for page in request.pages]
        stamp = tiers.stamp()
        found, cold = self._find(ids[: request.asked])
        served = self._restore(request, ids, found, cold, stamp)
        self._receive(request, ids[found : request.asked], served)
        sequence = _Sequence(request.pages, ids, found, stamp, stamp, set(ids[:found]))
        self._advance(request, sequence)
        served.refused_pages = self._finish(sequence, request.ended)
        if self._remote is not None:
            self._remote.add([page for page in ids if page in sequence.new])
        return served

    def known_tokens(self, request: Request) -> int:
        """Return how many of a prompt's tokens the tiers have; changes nothing."""
        return self._find([self._pages.ids[page] for page in request.pages[: request.asked]])[0] * (
            self._size
        )

    def _receive(self, request: Request, missing: Sequence[PageId], served: Served) -> None:
        """Note what of a prompt comes from the remote store."""
        if self._remote is None:
            return
        came = self._remote.leading(missing)
        whole = max(0, request.tokens_in - 1)
        served.remote_tokens = min(came * self._size, whole - served.tokens)
        served.remote_bytes = came * self._pages.nbytes

    def _find(self, ids: Sequence[PageId]) -> tuple[int, list[int]]:
        """Return how many leading pages there are, and which of them only the disk has."""
        tiers = self._tiers
        cold: list[int] = []
        first, stride = 0, STRIDE
        while first < len(ids):
            known = tiers.find_all(ids[first : first + stride])
            for at, one in enumerate(known, first):
                if one is None:
                    return at, cold
                if tiers.cold is not None and one.tier == "cold":
                    cold.append(at)
            first, stride = first + stride, 2 * stride
        return len(ids), cold

    def _restore(
        self, request: Request, ids: Sequence[PageId], found: int, cold: Sequence[int], stamp: int
    ) -> Served:
        """Bring what was found to memory, where that has room, and mark it as used."""
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
        return Served(tokens - from_disk, from_disk, len(cold) * pages.nbytes)

    def _advance(self, request: Request, sequence: _Sequence) -> None:
        """Store blocks as they are completed, a step of the prompt at a time, and of the answer one
        by one; what finds no room is tried again with the next."""
        done, asked, whole = sequence.restored, request.asked, len(sequence.chain)
        first = min(done * self._size + self._step, asked * self._size)
        steps = range(first, asked * self._size, self._step) if done < asked else ()
        for end in (*(tokens // self._size for tokens in steps), *range(asked, whole + 1)):
            if end > done:
                done += self._store(sequence, range(done, end))
                if done < end and self._tiers.cold is None:
                    # What memory alone has no room for now, it has none for a step later either.
                    return

    def _finish(self, sequence: _Sequence, ended: str) -> int:
        """Mark the whole sequence as used together, and store the rest; return how many of its
        pages found no room."""
        tiers, ids = self._tiers, sequence.ids
        sequence.finishing = True
        since = sequence.stamp
        sequence.stamp = tiers.stamp(ended=ended if is_ended(ended) else None)
        tiers.reorder(ids, sequence.new, sequence.stamp, since)
        missing = [at for at, known in enumerate(tiers.find_all(ids)) if known is None]
        left_out = missing[self._store(sequence, missing) :]
        if sequence.refused:
            tiers.refuse([ids[at] for at in left_out], sequence.began)
        return len(left_out)

    def _store(self, sequence: _Sequence, places: Sequence[int]) -> int:
        """Store pages in order until one has no room; return how many had."""
        stored = 0
        run: list[int] = []
        for at in places:
            if self._holds(sequence, at):
                done = self._store_run(sequence, run)
                stored += done
                if done < len(run):
                    return stored
                run = []
                stored += 1
            else:
                if run and (run[-1] != at - 1 or len(run) == RUN_PAGES):
                    done = self._store_run(sequence, run)
                    stored += done
                    if done < len(run):
                        return stored
                    run = []
                run.append(at)
        return stored + self._store_run(sequence, run)

    def _holds(self, sequence: _Sequence, at: int) -> bool:
        """True when a page need not be made; one that only the disk has is, to have it in
        memory, as it was computed again."""
        info = self._tiers.find(sequence.ids[at])
        if info is None:
            return False
        if info.tier != "hot" and self._tiers.retains and not sequence.finishing:
            return False
        sequence.own.add(sequence.ids[at])
        return True

    def _store_run(self, sequence: _Sequence, run: Sequence[int]) -> int:
        """Store pages that follow each other, several at once where there is room; return how many
        until one had none."""
        if not run:
            return 0
        tiers, nbytes, stored = self._tiers, self._pages.nbytes, 0
        while left := len(run) - stored:
            position = (run[-1] + 1) * self._size
            room = tiers.admit_run(nbytes, left, sequence.own, position=position)
            many = room.nbytes // nbytes
            if not room:
                break
            for at in run[stored : stored + many]:
                self._put(sequence, at, room)
            stored += many
        for at in run[stored:]:
            room = self._admit(sequence, at)
            if not room:
                # What the disk has need not be in memory.
                if self._tiers.find(sequence.ids[at]) is None:
                    return stored
                sequence.own.add(sequence.ids[at])
            else:
                self._put(sequence, at, room)
            stored += 1
        return stored

    def _admit(self, sequence: _Sequence, at: int) -> Reservation:
        room = self._admit_or_wait(sequence, at)
        sequence.refused = room.refused
        return room

    def _admit_or_wait(self, sequence: _Sequence, at: int) -> Reservation:
        tiers, nbytes, position = self._tiers, self._pages.nbytes, (at + 1) * self._size
        for _try in count():
            ended = tiers.writes_ended
            room = tiers.admit(nbytes, sequence.own, position=position)
            if room or room.refused or not sequence.finishing:
                return room
            if not tiers.wait_for_writer(0.0, ended):
                return tiers.admit(nbytes, sequence.own, queue=False, position=position)
        raise AssertionError("unreachable")

    def _put(self, sequence: _Sequence, at: int, room: Reservation) -> None:
        page, made = sequence.ids[at], self._pages.page(sequence.chain, at)
        sequence.own.add(page)
        if self._tiers.put(made, room, sequence.stamp, began_ns=sequence.began):
            sequence.new[page] = None
