"""Names of values: the content keys under a prefix.

    <prefix>/1/<architecture>/<namespace hex>/<key hex>-<group>      a page
    <prefix>/1/<architecture>/<namespace hex>/<parent hex>-tails     set of `<position>-<group>`:
                                                the pages that end inside the block after a boundary

`1` is the version of the envelope.
"""

from collections.abc import Iterable
from typing import NamedTuple

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

ENVELOPE_VERSION = 1


class RemoteNames(NamedTuple):
    """Names under one prefix, for machines of one architecture."""

    prefix: str
    architecture: str

    def page(self, namespace: BlockKey, page: PageId) -> str:
        return f"{self._of(namespace)}/{page.key.hex()}-{page.group}"

    def tails(self, namespace: BlockKey, parent: BlockKey) -> str:
        return f"{self._of(namespace)}/{parent.hex()}-tails"

    def _of(self, namespace: BlockKey) -> str:
        root = f"{self.prefix}/" if self.prefix else ""
        return f"{root}{ENVELOPE_VERSION}/{self.architecture}/{namespace.hex()}"


def tail_member(position: int, group: str) -> str:
    """Return what a set of tails has for a page."""
    return f"{position}-{group}"


def parse_tails(members: Iterable[str]) -> list[tuple[int, str]]:
    """Return positions and groups; members that are not as `tail_member` writes them are left
    out."""
    found = []
    for member in members:
        position, dash, group = member.partition("-")
        if dash and position.isascii() and position.isdigit() and len(position) < 16 and group:
            found.append((int(position), group))
    return found
