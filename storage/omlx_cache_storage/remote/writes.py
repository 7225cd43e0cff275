"""Pages on their way into a remote store: sealed, cut into parts, and never in the place of one
that holds more."""

from collections.abc import Sequence
from typing import NamedTuple

from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageError
from omlx_cache_storage.format.wrapping import unwrapped
from omlx_cache_storage.page import REMOTE, Page, PageId, PageInfo, PageMeta, Placed, WriteResult
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.engine import RemoteEngine, cut
from omlx_cache_storage.remote.envelope import WIRE_BYTES, EnvelopeHeader, read_descriptor, seal
from omlx_cache_storage.remote.keys import RemoteKeys
from omlx_cache_storage.remote.knowledge import Knowledge
from omlx_cache_storage.remote.names import RemoteNames, TailMember


class Written(NamedTuple):
    """What a write did, and how many bytes it put there."""

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
        heads, _ = self._engine.look([self._names.page(*one) for one in pages], WIRE_BYTES)
        damaged = self._damaged([placed.page for placed in pages])
        infos: list[PageInfo | None] = []
        for placed, head in zip(pages, heads, strict=True):
            is_there = head is not None and placed.page not in damaged
            said = self._described(placed, head or b"") if is_there else None
            infos.append(_info(said) if isinstance(said, EnvelopeHeader) else None)
        return infos

    def is_foreign(self, page: PageId) -> bool:
        """Return whether the store had, a moment ago, a page of another secret there."""
        foreign = self._knowledge.why_absent([page]).get(page) == reasons.FOREIGN
        return foreign and not self._knowledge.unknown([page])

    def write(self, page: Page) -> Written:
        """Publish a page whole or not at all, unless there is one that holds as much; raises
        RemoteError. `refused`: there is one that only somebody with another secret can read."""
        meta = unwrapped(page.meta)
        placed = Placed(meta.namespace, meta.id)
        name = self._names.page(*placed)
        pieces = seal(self._names.bound(*placed), page, self._keys, packs=self._packs)
        nbytes = sum(memoryview(piece).nbytes for piece in pieces)
        parts = cut(pieces, self._engine.part_bytes)
        damaged = meta.id in self._damaged([meta.id])
        if not self._engine.write(name, parts, replace=damaged):
            instead = "busy" if damaged else self._instead(placed, name, meta.held)
            if instead == "present":
                self._add_tail(meta, 0)
            if instead is not None:
                return Written(instead)
            if not self._engine.write(name, parts, replace=True):
                return Written("busy")
        info = PageInfo(meta.position, meta.held, meta.nbytes, REMOTE)
        self._knowledge.note(meta.namespace, [(meta.id, info, nbytes)])
        self._add_tail(meta, nbytes)
        return Written("written", nbytes)

    def _instead(self, placed: Placed, name: str, held: int) -> WriteResult | None:
        """Return what becomes of a page whose name is taken, None when it is to be written."""
        heads, _ = self._engine.look([name], WIRE_BYTES)
        found = CorruptPage("") if heads[0] is None else self._described(placed, heads[0])
        if isinstance(found, PageError):
            return None if isinstance(found, CorruptPage) else "refused"
        return "present" if found.held >= held else None

    def _described(self, placed: Placed, head: bytes) -> EnvelopeHeader | PageError:
        """Return what a value's first bytes say of it, which is known from then on."""
        try:
            said = read_descriptor(self._names.bound(*placed), head, self._keys)
        except PageError as error:
            if isinstance(error, ForeignPage):
                self._knowledge.note_absent([placed.page], reasons.FOREIGN)
            return error
        self._knowledge.note(placed.namespace, [(placed.page, _info(said), said.wire_bytes)])
        return said

    def _add_tail(self, meta: PageMeta, nbytes: int) -> None:
        """Have a page that ends inside a block found by the boundary before. Of one that was there
        already it is said again: who wrote it may not have come to that."""
        if not meta.tail:
            return
        seen = self._knowledge.seen(meta.id)
        nbytes = nbytes or (0 if seen is None else seen.wire_bytes)
        tail = TailMember(meta.key, meta.position, meta.held, meta.nbytes, nbytes, meta.group)
        self._engine.add(self._names.tails(meta.namespace, meta.parent), tail.text())
        self._knowledge.note_tails(meta.parent, [tail], whole=False)

    def _damaged(self, pages: Sequence[PageId]) -> set[PageId]:
        whys = self._knowledge.why_absent(pages)
        return {page for page, why in whys.items() if why == CorruptPage.reason}


def _info(said: EnvelopeHeader) -> PageInfo:
    return PageInfo(said.position, said.held, said.nbytes, REMOTE)
