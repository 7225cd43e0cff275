"""Names of values: the content keys under a prefix.

    <prefix>/1/<architecture>/<namespace hex>/<key hex>-<group>     a page
    <prefix>/1/<architecture>/<namespace hex>/<parent hex>-tails    a set: the pages that end inside
                                                                    the block after a boundary

`1` is the version of the envelope.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

ENVELOPE_VERSION = 1
MOST_BYTES = 1 << 32
"""The longest value that is believed on the word of bytes that were not checked yet."""
_NUMBER = r"(0|[1-9][0-9]{0,14})"
_KEY, _GROUP = "((?:[0-9a-f]{32}){1,2})", "([a-z0-9]{1,40})"
_MEMBER = re.compile("-".join((_KEY, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _GROUP)))


class RemoteNames(NamedTuple):
    """Names under one prefix, for machines of one architecture."""

    prefix: str
    architecture: str

    def page(self, namespace: BlockKey, page: PageId) -> str:
        return f"{self._of(namespace)}/{page.key.hex()}-{page.group}"

    def bound(self, namespace: BlockKey, page: PageId) -> str:
        """Return the part of a page's name that its envelope is bound to: without the prefix, so
        that a store can be copied to another place."""
        return RemoteNames("", self.architecture).page(namespace, page)

    def tails(self, namespace: BlockKey, parent: BlockKey) -> str:
        return f"{self._of(namespace)}/{parent.hex()}-tails"

    def _of(self, namespace: BlockKey) -> str:
        root = f"{self.prefix}/" if self.prefix else ""
        return f"{root}{ENVELOPE_VERSION}/{self.architecture}/{namespace.hex()}"


class TailMember(NamedTuple):
    """What a set of tails says of a page: enough to plan a restore, not to trust. Whoever can write
    to the store can add members, with or without a secret."""

    key: BlockKey
    position: int
    held: int
    nbytes: int
    wire_bytes: int
    group: str

    def text(self) -> str:
        numbers = f"{self.position}-{self.held}-{self.nbytes}-{self.wire_bytes}"
        return f"{self.key.hex()}-{numbers}-{self.group}"


def parse_tails(members: Iterable[str]) -> list[TailMember]:
    """Return what members say; those that are not as `TailMember.text` writes them are left out,
    and those of a page larger than there are: a reader makes ready for what it is to expect."""
    found = []
    for member in members:
        match = _MEMBER.fullmatch(member)
        if match is not None:
            key, *numbers, group = match.groups()
            position, held, nbytes, wire_bytes = map(int, numbers)
            if held > position or max(nbytes, wire_bytes) > MOST_BYTES:
                continue
            found.append(
                TailMember(BlockKey(bytes.fromhex(key)), position, held, nbytes, wire_bytes, group)
            )
    return found
