"""Whether the data of a page's file is what its checksum says."""

from dataclasses import replace
from pathlib import Path

from omlx_cache.control.replies import PageDetails


def with_verdict(page: PageDetails) -> PageDetails:
    """Return a page's description with `data`: `verified`, `damaged`, or why it was not read.

    Reads the whole file that the description names; a damaged one has an `error` too.
    """
    if page.error is not None:
        return page
    if not page.path:
        return replace(page, data="not verified: not on disk")
    # A page without a file needs none of it, and asking a store is to be quick.
    from omlx_cache_storage.errors import ForeignPage, PageError, PageUnreadable, UndecodablePage

    try:
        _read(Path(page.path))
    except FileNotFoundError:
        return replace(page, data="not verified: evicted meanwhile")
    except UndecodablePage as error:
        return replace(page, data="not verified", error=f"{error.reason}: {error}")
    except (ForeignPage, PageUnreadable, OSError) as error:
        return replace(page, data="not verified", error=f"unreadable: {error}")
    except PageError as error:
        return replace(page, data="damaged", error=f"{error.reason}: {error}")
    return replace(page, data="verified")


def _read(path: Path) -> None:
    """Read a page file and compare its checksum; raises PageError or OSError."""
    from omlx_cache_storage.cold.disk import DISK
    from omlx_cache_storage.cold.reader import PageReader

    with DISK.reading(path) as fd:
        reader = PageReader(DISK, fd, path)
        reader.read_into([bytearray(reader.meta.nbytes)])
