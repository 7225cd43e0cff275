"""The contents of a cold directory, read from its files: the rows that a running store answers
with."""

import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import environ, geteuid
from pathlib import Path

from omlx_cache.control.cold_files import created_ns, entries, pins_in, root_bytes
from omlx_cache.control.listing import (
    ListedPage,
    Pruning,
    choose,
    detail_rows,
    find_namespace,
    list_pages,
    namespace_rows,
    page_rows,
)
from omlx_cache.control.replies import NamespaceRow, PageDetails, PageRow
from omlx_cache.settings.machine import cold_dir_from_environment, probe
from omlx_cache.settings.names import COLD_DIR_VARIABLE, ConfigError
from omlx_cache_daemon.client import Map
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_daemon.render import text, warn
from omlx_cache_storage.breaker import NO_ROOM
from omlx_cache_storage.cold.catalog import ColdEntry, read_namespace
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.root import Root
from omlx_cache_storage.cold.small_files import read_pins
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.private import trouble


def configured_directory() -> Path:
    """Raises ConfigError for a bad variable."""
    try:
        return cold_dir_from_environment(probe().system, environ, Path.home())
    except ValueError as error:
        raise ConfigError(
            f"{COLD_DIR_VARIABLE}: got {environ[COLD_DIR_VARIABLE]!r} ({error}); "
            "allowed: a directory, or auto"
        ) from None


def root_of(cold_dir: Path) -> Root:
    machine = probe()
    parents = cold_dir == machine.default_cold_dir
    return Root(cold_dir, FileSystem(), memory=machine.state_dir, parents=parents)


@dataclass(frozen=True, slots=True)
class Files:
    """The pages of a directory, by their files. Each method raises NobodyThere without a directory,
    CommandError for one that cannot be read, or when the disk refuses."""

    directory: Path

    def entries(self) -> list[ColdEntry]:
        with reading(self.directory):
            return entries(self.directory)

    def namespaces(self, limit: int) -> list[NamespaceRow]:
        """Opens no page."""
        created_of = partial(created_ns, self.directory)
        return namespace_rows(self._pages(), self._document, limit, created_of)

    def pages(self, prefix: str, limit: int) -> list[PageRow]:
        """Raises ControlError when no namespace, or more than one, begins so, as a store does."""
        pages = self._pages()
        return page_rows(pages, find_namespace(pages, prefix), limit)

    def details(self, key_prefix: str, limit: int) -> list[PageDetails]:
        """A page whose header cannot be read is in the list with an `error`."""
        return detail_rows(self._pages(), key_prefix, limit)

    def prune(self, asked: Mapping[str, object], *, dry_run: bool) -> Map:
        """Choose pages by the arguments of `Pruning`, and delete them unless `dry_run`, of each
        chain the deep end first; return how many and why."""
        with reading(self.directory):
            pages = list_pages((), entries(self.directory))
            namespaces = {page.namespace for page in pages}
            pins = pins_in(self.directory, read_pins(self.directory), namespaces)
            pruning = Pruning(**asked)  # type: ignore[arg-type]
            chosen = choose(pages, pruning, self._document, pins, root_bytes(self.directory))
            if not dry_run:
                # Only here, and in `clear`: the import brings the code that changes a directory.
                from omlx_cache_daemon.changing import remove_pages

                every = (*chosen.stale, *chosen.older, *chosen.surplus)
                remove_pages(self.directory, [p.cold.stored for p in every if p.cold is not None])
            return chosen.to_dict()

    def clear(self, digest: str) -> int:
        from omlx_cache_daemon.changing import remove_namespace

        with reading(self.directory):
            return remove_namespace(self.directory, BlockKey(bytes.fromhex(digest)))

    def _document(self, namespace: BlockKey) -> dict[str, object]:
        return read_namespace(self.directory, namespace)

    def _pages(self) -> list[ListedPage]:
        with reading(self.directory):
            # It is shown all the same: a person may want to know what lies there.
            found = trouble(self.directory, self.directory.stat())
            warn({f"no store uses this directory: {text(found)}": found})
            return list_pages((), entries(self.directory))


@contextmanager
def reading(cold_dir: Path) -> Iterator[None]:
    """Raises NobodyThere where there is no directory, CommandError for every other trouble of it or
    its disk."""
    try:
        # Not `is_dir`, which answers False for some errors and raises others.
        info = cold_dir.stat()
        if not stat.S_ISDIR(info.st_mode):
            raise CommandError(f"{cold_dir} is not a directory")
        if info.st_uid != geteuid():
            raise CommandError(f"{cold_dir} belongs to user {info.st_uid}: run this as that user")
        yield
    except FileNotFoundError as error:
        raise NobodyThere(
            root_of(cold_dir).unmounted()
            or f"there is no cold directory at {cold_dir}: no store has made one, or its disk is "
            "not mounted; --cold-dir names another"
        ) from error
    except OSError as error:
        remedy = "; omlx-cache rm --to SIZE makes room" * (error.errno in NO_ROOM)
        raise CommandError(f"{cold_dir}: {error.strerror}{remedy}") from error
