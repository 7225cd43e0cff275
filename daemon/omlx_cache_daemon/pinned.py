"""The pins of a directory as people and programs see them: plain values, read from files."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from omlx_cache.identity.parts import salt_digest
from omlx_cache_daemon.changing import change_pins
from omlx_cache_daemon.cold import reading
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.replies import Map
from omlx_cache_daemon.selection import salts
from omlx_cache_storage.cold.catalog import ColdEntry, entries, pins_in, read_namespace
from omlx_cache_storage.cold.small_files import PINS, read_budget, read_pins
from omlx_cache_storage.documents import label
from omlx_cache_storage.hints import SHARE, PinRecord, Pins
from omlx_cache_storage.keys import BlockKey


def described(cold_dir: Path) -> Map:
    """Return a directory's pins, what is there of each, and what all of them may have. Opens no
    page; raises NobodyThere without a directory."""
    with reading(cold_dir):
        pins, pages, budget = read_pins(cold_dir), entries(cold_dir), read_budget(cold_dir)
        readable = PINS.is_readable(cold_dir)
        namespaces = {page.namespace for page in pages}
        wanted = pins_in(cold_dir, pins, namespaces)
        every = [page for page in pages if wanted.until(page.namespace, page.page.key)]
        return {
            "directory": str(cold_dir),
            "readable": readable,
            "pages": len(every),
            "bytes": sum(page.stored.cost for page in every),
            "limit_bytes": None if budget is None else budget.nbytes // SHARE,
            "pins": [
                _row(cold_dir, pin, pins_in(cold_dir, [pin], namespaces), pages) for pin in pins
            ],
        }


def pin(cold_dir: Path, pins: Iterable[PinRecord]) -> None:
    """Have pins in a directory, in place of those of the same pages; raises ChangeRefused."""
    added = list(pins)
    with reading(cold_dir):
        change_pins(
            cold_dir,
            lambda known: (*_without(known, added), *added),
        )


def unpin(cold_dir: Path, target: str | None, kind: str | None, shown: str) -> list[PinRecord]:
    """End the pins that a target names, all of them for None, and return them. Raises CommandError
    for none, and for several that begin so; ChangeRefused."""
    with reading(cold_dir):
        known = read_pins(cold_dir)
        ended = list(known) if target is None else _named(known, target, kind, shown)
        change_pins(cold_dir, lambda pins: _without(pins, ended))
    return ended


def pins_of(cold_dir: Path, digests: Iterable[str]) -> list[PinRecord]:
    """Return the pins that keep something of namespaces."""
    namespaces = [BlockKey(bytes.fromhex(digest)) for digest in digests]
    with reading(cold_dir):
        pins = read_pins(cold_dir)
        return [p for p in pins if pins_in(cold_dir, [p], namespaces).namespaces & {*namespaces}]


def forget(cold_dir: Path, pins: Iterable[PinRecord]) -> None:
    """End those of some pins that keep nothing of what a directory still has; raises
    ChangeRefused."""
    with reading(cold_dir):
        left = {page.namespace for page in entries(cold_dir)}
        ended = [p for p in pins if not pins_in(cold_dir, [p], left).namespaces & left]
        if ended:
            change_pins(cold_dir, lambda known: _without(known, ended))


def _without(pins: Iterable[PinRecord], others: Iterable[PinRecord]) -> list[PinRecord]:
    """Return the pins that are not of the same pages as any of `others`."""
    targets = {pin.target for pin in others}
    return [pin for pin in pins if pin.target not in targets]


def named(one: PinRecord) -> str:
    """Return a pin's pages in words."""
    return f"{one.kind} {one.name if one.kind == 'model' else one.name[:_SHOWN_DIGITS]}"


_SHOWN_DIGITS = 21
"""A salt's kind and its first digits, as `ls` shows them."""


def _named(
    known: Iterable[PinRecord], target: str, kind: str | None, shown: str
) -> list[PinRecord]:
    digests, lowered = {salt_digest(salt) for salt in salts(target)}, target.lower()

    def is_meant(one: PinRecord) -> bool:
        if one.kind == "salt":
            return one.name in digests
        if one.kind == "model":
            return target in (one.name, one.name.rpartition("/")[2])
        return one.name.startswith(lowered)

    found = [one for one in known if kind in (None, one.kind) and is_meant(one)]
    if not found:
        raise CommandError(f"nothing is pinned as {shown}; `omlx-cache pin` shows what is")
    if len({one.target for one in found}) > 1:
        names = ", ".join(map(named, found))
        raise CommandError(f"{shown} may be {names}: say more of it, or which with --as")
    return found


def _row(cold_dir: Path, one: PinRecord, wanted: Pins, pages: Iterable[ColdEntry]) -> Map:
    found = [page for page in pages if wanted.until(page.namespace, page.page.key)]
    row: Map = {
        "kind": one.kind,
        "name": one.name,
        "since": _date(one.since_ns),
        "until": None if one.until_ns is None else _date(one.until_ns),
        "pages": len(found),
        "bytes": sum(page.stored.nbytes for page in found),
    }
    if one.namespace is not None:
        row |= {
            "namespace": one.namespace.hex(),
            "model": label(read_namespace(cold_dir, one.namespace)),
            "blocks": len(one.keys),
            "blocks_here": len({page.page.key for page in found}),
        }
    return row


def _date(stamp_ns: int) -> str:
    # A file may say that it is of the year 300,000.
    seconds = min(stamp_ns // 10**9, 253_402_300_799)
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
