"""Deleting damaged pages of a directory from outside of its stores."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from omlx_cache_storage.cold.checking import PageChecker
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.removal import remove_opened
from omlx_cache_storage.format.names import StoredPage, page_path


def remove_damaged(
    cold_dir: Path, pages: Iterable[StoredPage], fs: FileSystem | None = None
) -> int:
    """Delete those pages whose files are damaged still, and none that was written anew meanwhile;
    return how many. Nobody waits while they are read. Otherwise as `remove_pages`."""
    fs = fs or FileSystem()
    removed = 0
    with PageChecker(fs) as checker:
        for page in pages:
            path = page_path(cold_dir, page.namespace, page.name)
            with contextlib.suppress(FileNotFoundError):
                fd = fs.open(path)
                try:
                    found = checker.trouble_of(path, page)
                    if found is not None and found[0] == "damaged":
                        removed += remove_opened(cold_dir, page, fd, fs)
                finally:
                    fs.close(fd)
    return removed
