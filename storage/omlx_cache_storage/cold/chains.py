"""The blocks before a block, as the names of its directory's files tell. Opens no file."""

from collections.abc import Iterable
from typing import NamedTuple

from omlx_cache_storage.format.names import StoredPage, parent_hint
from omlx_cache_storage.keys import BlockKey


class Chain(NamedTuple):
    """The keys from a root to a block; `is_whole` unless one between them has no page."""

    namespace: BlockKey
    keys: tuple[BlockKey, ...]
    is_whole: bool


class Chains:
    """Finds chains among page files, each once: `files` is gone through when it is made."""

    def __init__(self, files: Iterable[StoredPage]) -> None:
        self._hints: dict[tuple[BlockKey, BlockKey], bytes] = {}
        self._keys: dict[tuple[BlockKey, bytes], BlockKey] = {}
        for namespace, name, _ in files:
            key = name.id.key
            self._hints[namespace, key] = name.parent_hint
            self._keys[namespace, parent_hint(key)] = key

    def named(self, prefix: str) -> list[tuple[BlockKey, BlockKey]]:
        """Return the blocks whose keys begin so, each with its namespace."""
        return [block for block in self._hints if block[1].hex().startswith(prefix)]

    def to(self, namespace: BlockKey, key: BlockKey) -> Chain:
        """Return the chain that ends with a block: as much of it as there is."""
        keys, seen = [key], {key}
        while True:
            hint = self._hints.get((namespace, keys[-1]), b"")
            if hint == parent_hint(namespace):
                return Chain(namespace, tuple(reversed(keys)), True)
            before = self._keys.get((namespace, hint))
            if before is None or before in seen:
                return Chain(namespace, tuple(reversed(keys)), False)
            keys.append(before)
            seen.add(before)
