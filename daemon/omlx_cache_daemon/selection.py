"""Which pages of a directory a person means."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omlx_cache.control.replies import SHOWN_DIGITS, SHOWN_MATCHES, NamespaceRow
from omlx_cache.identity.namespace import salt_digest
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.offline_files import Files
from omlx_cache_daemon.places import EVERY
from omlx_cache_daemon.targets import KEY, KINDS, Target, meant
from omlx_cache_storage.cold.catalog import ColdEntry
from omlx_cache_storage.documents import shortened_salt
from omlx_cache_storage.format.names import parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.pins import PinRecord


@dataclass(frozen=True, slots=True)
class Selection:
    """Pages that were named. `rows` are their namespaces as `ls` has them.

    Of a block, `chain` has the keys from the root to it; `is_whole` unless one between them has no
    page.
    """

    kind: str
    target: Target
    rows: Sequence[NamespaceRow]
    pages: Sequence[ColdEntry]
    chain: tuple[BlockKey, ...] = ()
    is_whole: bool = True

    def pins(self, since_ns: int, until_ns: int | None) -> list[PinRecord]:
        make: Callable[..., PinRecord] = partial(PinRecord, since_ns=since_ns, until_ns=until_ns)
        match self.kind:
            case "key":
                last, namespace = self.chain[-1].hex(), self.pages[0].namespace
                return [make(KEY, last, namespace=namespace, keys=self.chain)]
            case "namespace":
                return [make("namespace", row.namespace) for row in self.rows]
            case "model":
                return [make("model", label) for label in sorted({row.label for row in self.rows})]
        shown = {row.salt for row in self.rows}
        digests = [salt_digest(salt) for salt in self.target.salts()]
        return [make("salt", digest) for digest in digests if shortened_salt(digest) in shown]


def select(cold_dir: Path, target: Target) -> Selection:
    """Reads no page. Raises CommandError for no pages, and for what may be meant in two ways."""
    files = Files(cold_dir)
    pages, rows = files.entries(), files.namespaces(EVERY)
    block = _block(pages, target) if target.kind in (None, KEY) else None
    if block is None:
        if target.kind == KEY:
            raise CommandError(f"no block's key begins with {target.shown} in {cold_dir}")
        kind, of = meant(rows, target)
        digests = {row.namespace for row in of}
        return Selection(kind, target, of, [e for e in pages if e.namespace.hex() in digests])
    if target.kind is None and any(of(rows, target) for of in KINDS.values()):
        raise CommandError(f"{target.shown} may be a block's key, too: say which with --as")
    mine = [entry for entry in pages if entry.namespace == block.namespace]
    keys, is_whole = _chain(mine, block)
    found = [entry for entry in mine if entry.page.key in keys]
    of = [row for row in rows if row.namespace == block.namespace.hex()]
    return Selection(KEY, target, of, found, keys, is_whole)


def _block(pages: Sequence[ColdEntry], target: Target) -> ColdEntry | None:
    """Return a page of the one block whose key begins so, None for none."""
    digits = target.digits
    found = {e.page.key.hex(): e for e in pages if digits and e.page.key.hex().startswith(digits)}
    if len(found) > 1:
        names = ", ".join(key[:SHOWN_DIGITS] for key in sorted(found)[:SHOWN_MATCHES])
        raise CommandError(f"{len(found)} blocks' keys begin with {target.shown}: {names}")
    return next(iter(found.values()), None)


def _chain(pages: Sequence[ColdEntry], block: ColdEntry) -> tuple[tuple[BlockKey, ...], bool]:
    """Return the keys from the root to a block, as many as its namespace has pages of, and whether
    that is all of them."""
    hints = {entry.page.key: entry.stored.name.parent_hint for entry in pages}
    by_hint = {parent_hint(key): key for key in hints}
    last, root = block.page.key, parent_hint(block.namespace)
    keys = {last: None}
    while hints[last] != root:
        before = by_hint.get(hints[last])
        if before is None or before in keys:
            return tuple(reversed(keys)), False
        last = before
        keys[last] = None
    return tuple(reversed(keys)), True
