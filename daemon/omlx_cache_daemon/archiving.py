"""Pages of a directory into an archive and back: what `export` and `import` do."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from omlx_cache.control.cold_files import namespaces, open_tier, scan
from omlx_cache.control.replies import SHOWN_DIGITS
from omlx_cache.identity.namespace import installed
from omlx_cache.package import VERSION
from omlx_cache.settings.model import CacheSettings
from omlx_cache_daemon.archive import Document, Manifest, PageAt, in_order
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.offline_files import Files
from omlx_cache_daemon.selection import Selection, select
from omlx_cache_daemon.targets import Target
from omlx_cache_storage.cold.catalog import ColdEntry, read_namespace
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.documents import label, versions
from omlx_cache_storage.eviction.keep import NEVER_NS
from omlx_cache_storage.page import Page, PageId, WriteResult


def chosen_pages(cold_dir: Path, target: Target | None) -> tuple[list[ColdEntry], Manifest, bool]:
    """Return the pages that a target names, all pages for None, in the order of an archive, its
    manifest, and whether their chain is whole. Raises CommandError for none."""
    if target is None:
        what, found, is_whole = "everything", Files(cold_dir).entries(), True
    else:
        chosen = select(cold_dir, target)
        what, found, is_whole = _named(chosen), [*chosen.pages], chosen.is_whole
    if not found:
        raise CommandError(f"there are no pages in {cold_dir}")
    owners = sorted({page.namespace for page in found})
    manifest = Manifest(
        len(found),
        sum(page.stored.nbytes for page in found),
        {owner.hex(): read_namespace(cold_dir, owner) for owner in owners},
        what,
        f"omlx-cache {VERSION}",
    )
    return in_order(found), manifest, is_whole


def _named(selection: Selection) -> str:
    """Return the selection in words; of a salt not the salt."""
    if selection.chain:
        return f"the chain to {selection.chain[-1].hex()}"
    if selection.kind == "model":
        return f"model {selection.rows[0].label}"
    names = sorted({row.namespace for row in selection.rows})
    return f"{selection.kind}: " + ", ".join(name[:SHOWN_DIGITS] for name in names)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Give a file of this user's alone that has its name when the block ends, and not before.
    Raises CommandError where something has the name already."""
    if os.path.lexists(path):
        raise CommandError(f"{path} is there already: delete it, or name another file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(fd, "wb", buffering=1 << 20) as file:
                yield file
                file.flush()
                os.fsync(fd)
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error


class Directory:
    """A cold directory into which pages go as a store's would: within its budget, announced to peer
    processes, durably. A context manager; raises CommandError for one that cannot be used.

    `evicted`: pages evicted for these; `lost`: pages of these that were evicted for later ones.
    """

    def __init__(self, cold_dir: Path) -> None:
        self.settings = settings = CacheSettings(cold_dir=cold_dir, hot_cache_only=False)
        self._tier = ColdTier(
            cold_dir,
            settings.cold_bytes,
            min_free_bytes=settings.min_free_bytes,
            durability="fsync",
            # No person has set the directory's budget with this command.
            derived=True,
            memory=settings.machine.state_dir,
            parents=settings.makes_parents,
        )
        self.evicted = self.lost = 0
        self._written: set[PageId] = set()

    def __enter__(self) -> "Directory":
        open_tier(self._tier, self.settings)
        state = self._tier.usage().state
        if state != "ok":
            self._tier.close()
            raise CommandError(f"{self._tier.directory}: {state}")
        return self

    def __exit__(self, *ended: object) -> None:
        self._tier.settle()
        self._tier.close()

    def has(self, page: PageAt) -> bool:
        self._tier.refresh()
        known = self._tier.info(page.name.id)
        return known is not None and known.held >= page.name.held

    def write(self, page: Page, time_ns: int, document: Document) -> WriteResult:
        result = self._tier.write(page, time_ns, document)
        if result == "full":
            raise OSError(errno.ENOSPC, "there is no room, by the budget or on the disk")
        if result == "written":
            self._written.add(page.meta.id)
        left = {page for page, used_ns in self._tier.take_lost() if used_ns != NEVER_NS}
        self.lost += len(left & self._written)
        self.evicted += len(left - self._written)
        self._written -= left
        return result


class Looked:
    """A cold directory that is only looked at."""

    evicted = lost = 0

    def __init__(self, cold_dir: Path) -> None:
        pages = scan(cold_dir) if cold_dir.is_dir() else ()
        self._held = {entry.page: entry.stored.held for entry in pages}

    def has(self, page: PageAt) -> bool:
        return self._held.get(page.name.id, -1) >= page.name.held

    def write(self, page: Page, time_ns: int, document: Document) -> WriteResult:
        return "written"


def warnings(manifest: Manifest, cold_dir: Path) -> list[str]:
    """Return why pages of an archive may never be found here: what else computes them decides
    which bits they have, and is part of their keys."""
    found, here = [], installed()
    known = {
        place
        for document in namespaces(cold_dir).values()
        if isinstance(place := document.get("architecture"), str)
    }
    for document in manifest.namespaces.values():
        theirs, place, name = versions(document), document.get("architecture"), label(document)
        differ = [
            f"{k} {v} (here {here[k]})"
            for k, v in theirs.items()
            if here.get(k) not in (None, "", v)
        ]
        if differ:
            found.append(f"{name}: computed with {', '.join(differ)}: stores here do not find it")
        if known and isinstance(place, str) and place not in known:
            others = ", ".join(sorted(known))
            found.append(
                f"{name}: computed on {place[:80]}, and what lies here on {others[:200]}: only "
                "stores on such a machine find it"
            )
    return list(dict.fromkeys(found))
