"""What a cold directory holds, read from its files: the rows that a running store answers with."""

import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from os import environ, geteuid
from pathlib import Path

from omlx_cache.control.listing import (
    Chosen,
    Documents,
    ListedPage,
    NoSuchNamespace,
    Pruning,
    choose,
    detail_rows,
    find_namespace,
    list_pages,
    namespace_rows,
    page_rows,
)
from omlx_cache.control.replies import NamespaceRow, PageDetails, PageRow
from omlx_cache.settings.machine import cold_dir_from_environment, default_cold_dir, state_dir
from omlx_cache.settings.names import COLD_DIR_VARIABLE, ConfigError
from omlx_cache_daemon.changing import Deleted, remove_namespace, remove_pages
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_daemon.render import text
from omlx_cache_storage.cold.catalog import (
    ColdEntry,
    created_ns,
    entries,
    pins_in,
    read_namespace,
    root_bytes,
    scan,
)
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.root import Root
from omlx_cache_storage.cold.small_files import read_pins
from omlx_cache_storage.documents import Versions
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.private import trouble


def configured_directory() -> Path:
    """Return the cold directory that a store would use; raises ConfigError for a bad variable."""
    system = "Darwin" if sys.platform == "darwin" else "Linux"
    try:
        return cold_dir_from_environment(system, environ, Path.home())
    except ValueError as error:
        raise ConfigError(
            f"{COLD_DIR_VARIABLE}: got {environ[COLD_DIR_VARIABLE]!r} ({error}); "
            "allowed: a directory, or auto"
        ) from None


def root_of(cold_dir: Path) -> Root:
    """Return a directory as a store that is started here would find it, or make it."""
    system, home = "Darwin" if sys.platform == "darwin" else "Linux", Path.home()
    whole = cold_dir == default_cold_dir(system, environ, home)
    memory = state_dir(system, environ, home)
    return Root(cold_dir, FileSystem(), memory=memory, parents=whole)


def cold_namespaces(cold_dir: Path, limit: int) -> list[NamespaceRow]:
    """Return a row for each namespace. Opens no page. Raises NobodyThere without a directory."""
    return namespace_rows(
        _pages(cold_dir), _document_of(cold_dir), limit, partial(created_ns, cold_dir)
    )


def cold_pages(cold_dir: Path, prefix: str, limit: int) -> list[PageRow]:
    """Return a row for each page of the namespace that begins with `prefix`, oldest token first.

    Raises CommandError when no namespace, or more than one, begins so.
    """
    pages = _pages(cold_dir)
    try:
        return page_rows(pages, find_namespace(pages, prefix), limit)
    except NoSuchNamespace as error:
        raise CommandError(f"{error} in {cold_dir}") from error


def cold_details(cold_dir: Path, prefix: str, limit: int) -> list[PageDetails]:
    """Return what the files of the pages say whose keys begin with `prefix`.

    A page that cannot be read is in the list with an `error`. Reads headers, no payload.
    """
    return detail_rows(_pages(cold_dir), prefix, limit)


def remove_cold(cold_dir: Path, digest: str) -> Deleted:
    """Delete the pages of a namespace; raises CommandError when the disk refuses."""
    with reading(cold_dir):
        return remove_namespace(cold_dir, BlockKey(bytes.fromhex(digest)))


def choose_cold(
    cold_dir: Path,
    *,
    keep: list[Versions] | None,
    before_ns: int | None,
    to_bytes: int | None,
) -> Chosen:
    """Return the pages of a directory that shall go. Opens no page."""
    with reading(cold_dir):
        pages = list_pages((), entries(cold_dir))
        asked = Pruning(keep, before_ns, to_bytes)
        pins = pins_in(cold_dir, read_pins(cold_dir), {page.namespace for page in pages})
        return choose(pages, asked, _document_of(cold_dir), pins, root_bytes(cold_dir))


def remove_chosen(cold_dir: Path, chosen: Chosen) -> int:
    """Delete pages, of each chain the deep end first; raises CommandError when the disk refuses."""
    with reading(cold_dir):
        every = (*chosen.stale, *chosen.older, *chosen.surplus)
        return remove_pages(
            cold_dir, [page.cold.stored for page in every if isinstance(page.cold, ColdEntry)]
        )


def _document_of(cold_dir: Path) -> Documents:
    return lambda name: read_namespace(cold_dir, name)


def _pages(cold_dir: Path) -> list[ListedPage]:
    with reading(cold_dir):
        # It is shown all the same: whoever looks may want to know what lies there.
        found = trouble(cold_dir, cold_dir.stat())
        if found:
            sys.stderr.write(f"omlx-cache: no store uses this directory: {text(found)}\n")
        return list_pages((), scan(cold_dir))


@contextmanager
def reading(cold_dir: Path) -> Iterator[None]:
    """Say what is wrong with a directory that cannot be read, or with a disk; raises NobodyThere
    where there is none, CommandError for everything else."""
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
            f"no store is running, and there is no cold directory at {cold_dir}"
        ) from error
    except OSError as error:
        raise CommandError(f"{cold_dir}: {error.strerror}") from error
