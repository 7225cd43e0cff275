"""Pins of a directory: pages that no process of it evicts until a time.

A pin names pages, those that come later too: of a namespace, a model or a salt, or of one chain
from its root to a block.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from omlx_cache_storage.keys import BlockKey

FOREVER_NS: Final = 1 << 62
"""The end of a pin without one."""

PinKind = Literal["namespace", "model", "salt", "key"]


@dataclass(frozen=True, slots=True)
class DirectoryPin:
    """Pages that stay from a time to another (nanoseconds since the epoch; None: until unpinned).

    `name` is a namespace's digest in hex, a model as listings name it, a salt's digest as
    documents have it, or a block's key in hex; then `namespace` is that of the block and `keys` are
    its chain, the root first.
    """

    kind: PinKind
    name: str
    since_ns: int
    until_ns: int | None = None
    namespace: BlockKey | None = None
    keys: tuple[BlockKey, ...] = ()

    @property
    def end_ns(self) -> int:
        return FOREVER_NS if self.until_ns is None else self.until_ns

    def is_of(self, other: "DirectoryPin") -> bool:
        """True for a pin of the same pages."""
        mine, theirs = (self.kind, self.name), (other.kind, other.name)
        return (*mine, self.namespace) == (*theirs, other.namespace)


Pins = tuple[DirectoryPin, ...]


def living(pins: Iterable[DirectoryPin], now_ns: int) -> Pins:
    """Return the pins that have not ended."""
    return tuple(pin for pin in pins if pin.end_ns > now_ns)
