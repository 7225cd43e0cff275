"""What a tier knows of its pages: by id, and which tails follow a block boundary."""

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from omlx_cache_storage.format.names import parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, Tail


class Indexed(Protocol):
    """What an index entry says of itself."""

    @property
    def position(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def tail(self) -> bool: ...
    @property
    def hint(self) -> bytes: ...


Entry = TypeVar("Entry", bound=Indexed)


class PageIndex(Generic[Entry]):
    """Entries by page id, and tails by their parent. Its owner's lock guards it.

    `_tails` has the page itself where a boundary has one tail, which nearly all have: a container
    for each would take half a kilobyte for every sequence on the disk.
    """

    def __init__(self) -> None:
        self._entries: dict[PageId, Entry] = {}
        self._tails: dict[bytes, PageId | set[PageId]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, page: PageId) -> bool:
        return page in self._entries

    def __iter__(self) -> Iterator[PageId]:
        return iter(self._entries)

    def get(self, page: PageId) -> Entry | None:
        return self._entries.get(page)

    def get_all(self, pages: Iterable[PageId]) -> list[Entry | None]:
        return list(map(self._entries.get, pages))

    def items(self) -> list[tuple[PageId, Entry]]:
        return list(self._entries.items())

    def put(self, page: PageId, entry: Entry) -> None:
        self.pop(page)
        self._entries[page] = entry
        if entry.tail:
            self._add_tail(entry.hint, page)

    def pop(self, page: PageId) -> Entry | None:
        entry = self._entries.pop(page, None)
        if entry is not None and entry.tail:
            siblings = self._tails[entry.hint]
            if isinstance(siblings, set) and len(siblings) > 1:
                siblings.discard(page)
            else:
                del self._tails[entry.hint]
        return entry

    def _add_tail(self, hint: bytes, page: PageId) -> None:
        siblings = self._tails.setdefault(hint, page)
        if isinstance(siblings, set):
            siblings.add(page)
        elif siblings != page:
            self._tails[hint] = {siblings, page}

    def tails(self, parent: BlockKey) -> set[Tail]:
        return self.tails_of([parent])

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        """Return the tails that may follow boundaries: hints, to be checked by key."""
        tails: set[Tail] = set()
        for hint in self._tails.keys() & map(parent_hint, parents) if self._tails else ():
            siblings = self._tails[hint]
            pages = siblings if isinstance(siblings, set) else {siblings}
            tails.update(Tail(self._entries[page].position, page.group) for page in pages)
        return tails
