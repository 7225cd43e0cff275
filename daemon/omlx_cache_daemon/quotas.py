"""The budget and the pins of a cold directory as people and programs see them: read from files."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from omlx_cache.control.cold_files import pins_in, root_bytes
from omlx_cache.control.listing import Footprint, date
from omlx_cache.identity.namespace import salt_digest
from omlx_cache_daemon.changing import change_budget, change_pins
from omlx_cache_daemon.client import Map
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.offline_files import Files, reading
from omlx_cache_daemon.targets import Target
from omlx_cache_storage.cold.catalog import ColdEntry, read_namespace
from omlx_cache_storage.cold.disk import DISK
from omlx_cache_storage.cold.root import refuse_foreign
from omlx_cache_storage.cold.small_files import PINS, Budget, read_budget, read_pins
from omlx_cache_storage.documents import label
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.pins import SHARE, PinRecord, Pins

_LAST_NS = 253_402_300_799 * 10**9
"""Of the year 9999, the last that a date can be of."""


def described(cold_dir: Path) -> Map:
    """Return a directory's budget and usage, its pins with the pages of each, and the most bytes
    that all pins may take. Opens no page; raises NobodyThere without a directory."""
    pages = Files(cold_dir).entries()
    with reading(cold_dir):
        budget, pins, spare = read_budget(cold_dir), read_pins(cold_dir), DISK.spare_files(cold_dir)
        used = Footprint(root_bytes(cold_dir))
        for page in pages:
            used.add(page.namespace, page.page.key, page.stored.nbytes)
        namespaces = {page.namespace for page in pages}
        kept = _pages_of(pins_in(cold_dir, pins, namespaces), pages)
        each = [_pages_of(pins_in(cold_dir, [pin], namespaces), pages) for pin in pins]
        return {
            "directory": str(cold_dir),
            "bytes": None if budget is None else budget.nbytes,
            "set_by": None if budget is None else budget.set_by,
            "used_bytes": used.nbytes,
            "page_bytes": sum(page.stored.nbytes for page in pages),
            "pinned_pages": len(kept),
            "pinned_bytes": sum(page.stored.cost for page in kept),
            "pinned_limit_bytes": None if budget is None else budget.nbytes // SHARE,
            "lacks_files": spare is not None and spare <= 0,
            "pins_readable": PINS.is_readable(cold_dir),
            "pins": [_row(cold_dir, *one) for one in zip(pins, each, strict=True)],
        }


def change(cold_dir: Path, nbytes: int | None) -> None:
    """Change the budget of a directory that exists; None leaves it to the stores. Raises
    CommandError, ChangeRefused, and DirectoryGone for one that is no cache's."""
    refuse_foreign(cold_dir, DISK)
    with reading(cold_dir):
        change_budget(cold_dir, lambda known: _resized(known, nbytes))


def pin(cold_dir: Path, added: Iterable[PinRecord]) -> None:
    """Set pins in place of other pins of the same pages; raises ChangeRefused."""
    pins = list(added)
    with reading(cold_dir):
        change_pins(cold_dir, lambda known: (*_without(known, pins), *pins))


def unpin(cold_dir: Path, target: Target | None) -> list[PinRecord]:
    """End the pins that a target names, all of them for None, and return them. Raises CommandError
    for none, and for several that begin so; ChangeRefused."""
    with reading(cold_dir):
        known = read_pins(cold_dir)
        ended = list(known) if target is None else _meant(known, target)
        change_pins(cold_dir, lambda pins: _without(pins, ended))
    return ended


def pins_of(cold_dir: Path | None, digests: Iterable[str]) -> list[PinRecord]:
    if cold_dir is None:
        return []
    namespaces = [BlockKey(bytes.fromhex(digest)) for digest in digests]
    with reading(cold_dir):
        pins = read_pins(cold_dir)
        return [p for p in pins if pins_in(cold_dir, [p], namespaces).namespaces & {*namespaces}]


def forget(cold_dir: Path, pins: Iterable[PinRecord]) -> None:
    """End each given pin that covers no page of a directory; raises ChangeRefused."""
    left = {page.namespace for page in Files(cold_dir).entries()}
    with reading(cold_dir):
        ended = [p for p in pins if not pins_in(cold_dir, [p], left).namespaces & left]
        if ended:
            change_pins(cold_dir, lambda known: _without(known, ended))


def _resized(known: Budget | None, nbytes: int | None) -> Budget:
    if nbytes is not None:
        return Budget(nbytes, "quota")
    if known is None:
        raise CommandError(
            "the directory has no budget yet: give it one first, such as omlx-cache quota 20GiB"
        )
    return replace(known, set_by="free space")


def _without(pins: Iterable[PinRecord], others: Iterable[PinRecord]) -> list[PinRecord]:
    targets = {one.target for one in others}
    return [one for one in pins if one.target not in targets]


def _meant(known: Iterable[PinRecord], target: Target) -> list[PinRecord]:
    name, digests = target.name, {salt_digest(salt) for salt in target.salts()}
    of_kind = {
        "salt": lambda pinned: pinned in digests,
        "model": lambda pinned: name in (pinned, pinned.rpartition("/")[2]),
    }

    def is_digits(pinned: str) -> bool:
        return pinned.startswith(name.lower())

    kinds = [one for one in known if target.kind in (None, one.kind)]
    found = [one for one in kinds if of_kind.get(one.kind, is_digits)(one.name)]
    if not found:
        raise CommandError(f"nothing is pinned as {target.shown}; omlx-cache quota shows what is")
    if len({one.target for one in found}) > 1:
        names = ", ".join(f"{one.kind} {one.name}" for one in found)
        raise CommandError(f"{target.shown} may be {names}: say more of it, or which with --as")
    return found


def _pages_of(wanted: Pins, pages: Iterable[ColdEntry]) -> list[ColdEntry]:
    return [page for page in pages if wanted.until(page.namespace, page.page.key)]


def _row(cold_dir: Path, one: PinRecord, pages: list[ColdEntry]) -> Map:
    row: Map = {
        "kind": one.kind,
        "name": one.name,
        "since": date(one.since_ns, _LAST_NS),
        "until": None if one.until_ns is None else date(one.until_ns, _LAST_NS),
        "pages": len(pages),
        "bytes": sum(page.stored.nbytes for page in pages),
    }
    if one.namespace is not None:
        row |= {
            "namespace": one.namespace.hex(),
            "model": label(read_namespace(cold_dir, one.namespace)),
            "blocks": len(one.keys),
            "blocks_here": len({page.page.key for page in pages}),
        }
    return row
