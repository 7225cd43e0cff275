"""What a remote store has of a chain, in at most three sequential phases.

An engine that answers any number of names in one round trip (Redis) is asked for all blocks first,
then for other groups and tails near where the blocks end, and before that only if there are none.
One that takes a request for each name (object stores) is asked for evenly spread blocks, then for
those in the gap where the chain ends, then for what else is near there: a chain is written root
first, so what lies before a block that is there is taken to be there too; if it is not, the read is
a miss.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import REMOTE, PageId, PageInfo
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.engine import RemoteEngine
from omlx_cache_storage.remote.envelope import WIRE_BYTES, read_descriptor
from omlx_cache_storage.remote.keys import RemoteKeys
from omlx_cache_storage.remote.knowledge import Knowledge
from omlx_cache_storage.remote.lookups import Inquiry
from omlx_cache_storage.remote.names import RemoteNames, TailMember, parse_tails

DEEP = 64
"""Boundaries before the deepest block of which all is asked at once; of those before only where
something is missing there. A server answers some hundred thousand names a second, for everybody."""
NEAR = 2
"""Boundaries up to the deepest block whose tails are asked for where each costs a request."""


class Asking:
    """One inquiry in flight. Used by one thread; what it finds goes to the knowledge at once.

    `bad` is told of values that are none of ours, `answered` how long each phase took. `phases`
    followed each other; `asked` names were asked for, and `found` of them were there; `news` says
    that pages are known now that were not; `trouble` is the word for values that are another
    secret's.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        names: RemoteNames,
        keys: RemoteKeys,
        knowledge: Knowledge,
        inquiry: Inquiry,
        bad: Callable[[PageError], None] = lambda error: None,
        answered: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._engine = engine
        self._names = names
        self._keys = keys
        self._knowledge = knowledge
        self._inquiry = inquiry
        self._bad = bad
        self._answered = answered
        size = inquiry.block_size
        self._starts = {key: n * size for n, key in enumerate(inquiry.keys)}
        self.phases = self.asked = self.found = 0
        self.news = False
        self.trouble = ""

    def run(self) -> None:
        """Ask; raises RemoteError."""
        inquiry = self._inquiry
        blocks = len(inquiry.keys) - 1
        if self._engine.asks_together >= blocks * (1 + len(inquiry.others)):
            self._all_together(blocks)
        else:
            self._by_probes(blocks)

    def _all_together(self, blocks: int) -> None:
        inquiry = self._inquiry
        if inquiry.paged is None:
            everything = range(1, blocks + 1)
            self._ask(self._others(everything), self._parents(0, blocks))
            return
        self._ask(self._paged(range(inquiry.known + 1, blocks + 1)))
        deepest = self._deepest(blocks)
        if not inquiry.others:
            self._ask((), self._parents(max(0, deepest - NEAR), deepest))
            return
        first = max(1, deepest - DEEP - max(inquiry.others.values()))
        self._ask(self._others(range(first, deepest + 1)), self._parents(first, deepest))
        if first > 1 and not self._has_all_others(first, deepest):
            self._ask(self._others(range(1, first)), self._parents(0, first - 1))

    def _by_probes(self, blocks: int) -> None:
        inquiry, together = self._inquiry, self._engine.asks_together
        if inquiry.paged is None:
            last = range(max(1, blocks - together + 1), blocks + 1)
            self._ask(self._others(last), self._parents(max(0, blocks - NEAR), blocks))
            return
        low, high = inquiry.known, blocks + 1
        for _phase in range(2):
            probes = spread(low, high, together)
            if not probes:
                break
            self._ask(self._paged(probes))
            there = [n for n in probes if self._knowledge.seen(self._paged([n])[0])]
            low = max([low, *there])
            high = min([high, *(n for n in probes if n > low)])
        self._assume(low)
        reach = max([NEAR, *inquiry.others.values(), together if inquiry.others else 0])
        near = range(max(1, low - reach), low + 1)
        self._ask(self._others(near), self._parents(max(0, low - NEAR), low))

    def _paged(self, blocks: Iterable[int]) -> list[PageId]:
        group, keys = self._inquiry.paged, self._inquiry.keys
        return [] if group is None else [PageId(keys[n], group) for n in blocks]

    def _others(self, blocks: Iterable[int]) -> list[PageId]:
        keys, firsts = self._inquiry.keys, self._inquiry.firsts
        found = [PageId(keys[n], group) for n in blocks for group in self._inquiry.others]
        return list(dict.fromkeys((*firsts, *found)))

    def _parents(self, first: int, last: int) -> list[BlockKey]:
        return list(self._inquiry.keys[first : last + 1])

    def _has_all_others(self, first: int, deepest: int) -> bool:
        """Return whether every other group has something at these boundaries: what lies before
        would make a shorter prefix."""
        keys = self._inquiry.keys[first : deepest + 1]
        within = {tail.group for tail in self._knowledge.tails_of(keys)}
        return all(
            group in within or any(self._knowledge.find_all([PageId(key, group) for key in keys]))
            for group in self._inquiry.others
        )

    def _deepest(self, blocks: int) -> int:
        """Return how many blocks are there without a gap, as far as is known."""
        deepest = self._inquiry.known
        pages = self._paged(range(deepest + 1, blocks + 1))
        for info in self._knowledge.find_all(pages):
            if info is None:
                break
            deepest += 1
        return deepest

    def _assume(self, deepest: int) -> None:
        """Take the blocks before the deepest one to be there, as large as it; but those that were
        found to be absent, or bad, lately."""
        known = self._inquiry.known
        if deepest <= known:
            return
        like = self._knowledge.seen(self._paged([deepest])[0])
        if like is None:
            return
        size = self._inquiry.block_size
        between = self._paged(range(known + 1, deepest))
        assumable = self._knowledge.assumable(between)
        self._note(
            [
                (page, PageInfo(n * size, size, like.info.nbytes, REMOTE), 0)
                for n, page in enumerate(between, known + 1)
                if page in assumable
            ]
        )

    def _ask(self, of_pages: Sequence[PageId], of_parents: Sequence[BlockKey] = ()) -> None:
        """Ask one phase, of what is not known: blocks and tails at once where the engine can."""
        pages = self._knowledge.unknown(of_pages)
        parents = self._unknown_parents(of_parents)
        if not pages and not parents:
            return
        namespace = self._inquiry.namespace
        self.phases += 1
        self.asked += len(pages) + len(parents)
        names = [self._names.page(namespace, page) for page in pages]
        sets = [self._names.tails(namespace, parent) for parent in parents]
        began = time.perf_counter()
        heads, members = self._engine.look(names, WIRE_BYTES, sets)
        self._answered(time.perf_counter() - began)
        found: list[tuple[PageId, PageInfo, int]] = []
        for page, head in zip(pages, heads, strict=True):
            if head is None:
                continue
            try:
                said = read_descriptor(self._names.bound(namespace, page), head, self._keys)
            except PageError as error:
                self._bad(error)
                is_foreign = isinstance(error, ForeignPage)
                self.trouble = reasons.FOREIGN if is_foreign else self.trouble
                why = reasons.FOREIGN if is_foreign else error.reason
                self._knowledge.note_absent([page], why)
                continue
            info = PageInfo(said.position, said.held, said.nbytes, REMOTE)
            found.append((page, info, said.wire_bytes))
        self.found += len(found)
        self._note(found)
        self._knowledge.note_absent(
            [page for page, head in zip(pages, heads, strict=True) if head is None]
        )
        for parent, texts in zip(parents, members, strict=True):
            self._note_tails(parent, texts)

    def _note(self, found: Sequence[tuple[PageId, PageInfo, int]]) -> None:
        self.news |= bool(self._knowledge.note(self._inquiry.namespace, found))

    def _unknown_parents(self, parents: Iterable[BlockKey]) -> list[BlockKey]:
        """Return those of whose tails nothing was asked lately; of the others know this prompt's:
        it may have been another one for which they were asked."""
        unknown = []
        for parent in parents:
            members = self._knowledge.members_of(parent)
            if members is None:
                unknown.append(parent)
            else:
                self._note_own(members)
        return unknown

    def _note_tails(self, parent: BlockKey, texts: Sequence[str]) -> None:
        groups = {self._inquiry.paged, *self._inquiry.others}
        within = self._starts[parent]
        members = [
            member
            for member in parse_tails(texts)
            if member.group in groups
            and within < member.position < within + self._inquiry.block_size
        ]
        self._knowledge.note_tails(parent, members)
        self._note_own(members)

    def _note_own(self, members: Iterable[TailMember]) -> None:
        """Know those tails that this prompt has: others may end at the same place."""
        found = []
        for tail in members:
            if tail.position > self._inquiry.length:
                continue
            page = PageId(self._inquiry.key(tail.position), tail.group)
            if page.key == tail.key and not self._knowledge.is_shunned(page):
                info = PageInfo(tail.position, tail.held, tail.nbytes, REMOTE)
                found.append((page, info, tail.wire_bytes))
        self._note(found)


def spread(low: int, high: int, most: int) -> list[int]:
    """Return at most `most` numbers between `low` and `high`, both left out, evenly spread; they
    cut what lies between into stretches as short as can be."""
    between = high - low - 1
    if between <= most:
        return list(range(low + 1, high))
    step = (high - low) / (most + 1)
    return sorted({low + round(step * n) for n in range(1, most + 1)} - {low, high})
