"""What the cold tier knows and says of its pages: plain values, no behaviour."""

from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.format.names import StoredPage, page_path
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo

SMALL_FILE_BYTES = 4096
"""What a directory or a document takes."""


class PendingDeletion(NamedTuple):
    """A file to be deleted: its page has left the index, `why` in a word; without a page it is a
    temporary one."""

    page: StoredPage | None
    path: str
    cost: int
    why: str = "disk"


class ColdEntry(NamedTuple):
    """A page in a listing, with its recency stamp. Its path is made when it is asked for."""

    cold_dir: Path
    stored: StoredPage
    used_ns: int

    @property
    def page(self) -> PageId:
        return self.stored.name.id

    @property
    def namespace(self) -> BlockKey:
        return self.stored.namespace

    @property
    def info(self) -> PageInfo:
        return self.stored.info

    @property
    def path(self) -> Path:
        return Path(page_path(self.cold_dir, self.stored.namespace, self.stored.name))
