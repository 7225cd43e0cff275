"""Which pages of a directory a person means: of a namespace, a model, a salt, or up to a block."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from omlx_cache.control.listing import list_pages, namespace_rows
from omlx_cache.control.replies import NamespaceRow
from omlx_cache.identity.parts import salt_digest
from omlx_cache_daemon.cold import reading
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.targets import KEY, KINDS, meant
from omlx_cache_storage.cold.catalog import ColdEntry, created_ns, entries, read_namespace
from omlx_cache_storage.documents import shortened_salt
from omlx_cache_storage.format.names import StoredPage, parent_hint
from omlx_cache_storage.hints import PinRecord
from omlx_cache_storage.keys import BlockKey

_EVERY = 2**31 - 1
_SHOWN = 5
_SHOWN_DIGITS = 16


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


@dataclass(frozen=True, slots=True)
class Selection:
    """Pages that were named in one of four ways.

    `rows` are their namespaces as `ls` has them; `chain` is set for a block.
    """

    kind: str
    target: str
    rows: Sequence[NamespaceRow]
    pages: Sequence[ColdEntry]
    chain: Chain | None = None

    def pins(self, since_ns: int, until_ns: int | None) -> list[PinRecord]:
        """Return what pins these pages, and those of that name that come later."""
        make: Callable[..., PinRecord] = partial(PinRecord, since_ns=since_ns, until_ns=until_ns)
        if self.chain is not None:
            namespace, keys, _ = self.chain
            return [make("key", keys[-1].hex(), namespace=namespace, keys=keys)]
        if self.kind == "namespace":
            return [make("namespace", row.namespace) for row in self.rows]
        if self.kind == "model":
            return [make("model", name) for name in sorted({row.label for row in self.rows})]
        shown = {row.salt for row in self.rows}
        digests = [salt_digest(salt) for salt in salts(self.target)]
        return [make("salt", digest) for digest in digests if shortened_salt(digest) in shown]


def select(cold_dir: Path, target: str, kind: str | None, shown: str) -> Selection:
    """Return the pages of a directory that a target names; reads no page. Raises CommandError for
    none, and for what may be meant in two ways."""
    with reading(cold_dir):
        pages = entries(cold_dir)
    rows = namespace_rows(
        list_pages((), pages),
        partial(read_namespace, cold_dir),
        _EVERY,
        partial(created_ns, cold_dir),
    )
    chain = _chain(pages, target, shown) if kind in (None, KEY) else None
    if kind == KEY and chain is None:
        raise CommandError(f"no block's key begins with {shown} in {cold_dir}")
    if chain is not None and kind is None and _names_others(rows, target):
        raise CommandError(f"{shown} may be a block's key, too: say which with --as")
    if chain is not None:
        keys = set(chain.keys)
        found = [e for e in pages if e.namespace == chain.namespace and e.page.key in keys]
        of = [row for row in rows if row.namespace == chain.namespace.hex()]
        return Selection(KEY, target, of, found, chain)
    of = meant(rows, target, kind, shown)
    digests = {row.namespace for row in of}
    kinds = KINDS if kind is None else (kind,)
    named = next(name for name in kinds if KINDS[name](rows, target))
    return Selection(named, target, of, [e for e in pages if e.namespace.hex() in digests])


def salts(target: str) -> tuple[str, bytes]:
    """Return the salts that a text may stand for: itself, and its bytes."""
    return target, target.encode("utf-8", "surrogateescape")


def _names_others(rows: Sequence[NamespaceRow], target: str) -> bool:
    return any(of(rows, target) for of in KINDS.values())


def _chain(pages: Sequence[ColdEntry], target: str, shown: str) -> Chain | None:
    """Return the chain to the one block whose key begins so, None for none."""
    lowered = target.lower()
    if not lowered or set(lowered) - set("0123456789abcdef"):
        return None
    chains = Chains(entry.stored for entry in pages)
    found = chains.named(lowered)
    if len(found) > 1:
        names = ", ".join(sorted(key.hex()[:_SHOWN_DIGITS] for _, key in found)[:_SHOWN])
        raise CommandError(f"{len(found)} blocks' keys begin with {shown}: {names}")
    return chains.to(*found[0]) if found else None
