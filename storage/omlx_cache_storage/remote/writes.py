"""Pages on their way into a remote store: sealed, cut into parts, and never in the place of one
that holds more."""

from collections.abc import Sequence
from typing import NamedTuple

from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageError
from omlx_cache_storage.format.wrapping import unwrapped
from omlx_cache_storage.page import REMOTE, Page, PageId, PageInfo, Placed
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.engine import RemoteEngine
from omlx_cache_storage.remote.envelope import WIRE_BYTES, Descriptor, read_descriptor, seal
from omlx_cache_storage.remote.keys import RemoteKeys
from omlx_cache_storage.remote.knowledge import Knowledge
from omlx_cache_storage.remote.names import RemoteNames, TailMember
from omlx_cache_storage.remote.wire import cut
from omlx_cache_storage.tier import WriteResult


class Written(NamedTuple):
    """What a write did, and how many bytes it put there. `busy`: another machine is writing it, or
    was when it died."""

    result: WriteResult
    nbytes: int = 0


class RemoteWrites:
    """Writes pages; any thread may call, and each call waits for the network. Nothing is mutable
    here."""

    def __init__(
        self,
        engine: RemoteEngine,
        names: RemoteNames,
        keys: RemoteKeys,
        knowledge: Knowledge,
        *,
        packs: bool,
    ) -> None:
        self._engine = engine
        self._names = names
        self._keys = keys
        self._knowledge = knowledge
        self._packs = packs

    def present(self, pages: Sequence[Placed]) -> list[PageInfo | None]:
        """Return what the store has of each page, by one question; raises RemoteError. One that was
        read and found to be damaged looks well from its first bytes, and is none."""
        names = [self._names.page(*placed) for placed in pages]
        heads, _ = self._engine.look(names, WIRE_BYTES)
        found: list[PageInfo | None] = []
        damaged = self._damaged([placed.page for placed in pages])
        for placed, head in zip(pages, heads, strict=True):
            said = None
            if head is not None and placed.page not in damaged:
                try:
                    said = self._described(placed, head)
                except ForeignPage:
                    self._knowledge.note_absent([placed.page], reasons.FOREIGN)
                except PageError:
                    said = None
            found.append(None if said is None else self._know(placed, said))
        return found

    def write(self, page: Page) -> Written:
        """Publish a page whole or not at all, unless there is one that holds as much; raises
        RemoteError. `refused`: there is one that only somebody with another secret can read, or was
        a moment ago: nothing is sent to learn that again."""
        meta = unwrapped(page.meta)
        placed = Placed(meta.namespace, meta.id)
        if self._is_foreign(meta.id):
            return Written("refused")
        name = self._names.page(*placed)
        pieces = seal(self._names.bound(*placed), page, self._keys, packs=self._packs)
        nbytes = sum(memoryview(piece).nbytes for piece in pieces)
        parts = cut(pieces, self._engine.part_bytes)
        damaged = bool(self._damaged([meta.id]))
        if not self._engine.write(name, parts, replace=damaged):
            instead = Written("busy") if damaged else self._instead(placed, meta.held)
            if instead is not None:
                if instead.result == "present":
                    self._add_tail(page, 0)
                return instead
            if not self._engine.write(name, parts, replace=True):
                return Written("busy")
        info = PageInfo(meta.position, meta.held, meta.nbytes, REMOTE)
        self._knowledge.note(meta.namespace, [(meta.id, info, nbytes)])
        self._add_tail(page, nbytes)
        return Written("written", nbytes)

    def _instead(self, placed: Placed, held: int) -> Written | None:
        """Return what becomes of a page whose name is taken, None when it is to be written."""
        heads, _ = self._engine.look([self._names.page(*placed)], WIRE_BYTES)
        if heads[0] is None:
            return None
        try:
            said = self._described(placed, heads[0])
        except CorruptPage:
            return None
        except PageError:
            return Written("refused")
        self._know(placed, said)
        return Written("present") if said.held >= held else None

    def _damaged(self, pages: Sequence[PageId]) -> set[PageId]:
        whys = self._knowledge.why_absent(pages)
        return {page for page, why in whys.items() if why == CorruptPage.reason}

    def _is_foreign(self, page: PageId) -> bool:
        """True for a page that was asked for a moment ago, and is another secret's."""
        foreign = self._knowledge.why_absent([page]).get(page) == reasons.FOREIGN
        return foreign and not self._knowledge.unknown([page])

    def _described(self, placed: Placed, head: bytes) -> Descriptor:
        return read_descriptor(self._names.bound(*placed), head, self._keys)

    def _know(self, placed: Placed, said: Descriptor) -> PageInfo:
        info = PageInfo(said.position, said.held, said.nbytes, REMOTE)
        self._knowledge.note(placed.namespace, [(placed.page, info, said.wire_bytes)])
        return info

    def _add_tail(self, page: Page, nbytes: int) -> None:
        """Have a page that ends inside a block found by the boundary before. Of one that was there
        already it is said again: who wrote it may not have come to that."""
        meta = unwrapped(page.meta)
        if not meta.tail:
            return
        if not nbytes:
            seen = self._knowledge.seen(meta.id)
            nbytes = 0 if seen is None else seen.wire_bytes
        tail = TailMember(meta.key, meta.position, meta.held, meta.nbytes, nbytes, meta.group)
        self._engine.add(self._names.tails(meta.namespace, meta.parent), tail.text())
        self._knowledge.note_tails(meta.parent, [tail], whole=False)
