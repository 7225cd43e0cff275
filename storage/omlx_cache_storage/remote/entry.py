"""A page of a remote store in a listing."""

from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo


class RemoteEntry(NamedTuple):
    """A page in a listing. Nobody knows when it was used."""

    page: PageId
    namespace: BlockKey
    info: PageInfo

    @property
    def used_ns(self) -> int:
        return 0

    @property
    def path(self) -> Path | None:
        return None
