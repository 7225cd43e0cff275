"""What restore needs of a store, and how a page that cannot be used is told apart."""

from contextlib import AbstractContextManager
from typing import Protocol

from omlx_cache.pages.encoding import DENSE
from omlx_cache.restore.plan import PageRead
from omlx_cache_storage.cold.reader import PageReader
from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.page import Page, PageId, PageMeta


class Pages(Protocol):
    """Where an executor gets pages from."""

    def reading(self, page: PageId) -> AbstractContextManager[PageReader]: ...
    def keep(self, page: Page) -> bool: ...


class PageFailed(Exception):
    """A page could not be used; the restore must be planned again without it."""

    def __init__(self, page: PageId, cause: PageError) -> None:
        super().__init__(str(cause))
        self.page = page
        self.cause = cause


def is_direct(read: PageRead, meta: PageMeta) -> bool:
    """True when a page's tensors are what its targets want; False when a codec stands between.

    Raises PageFailed for a page without codec that has other tensors than expected.
    """
    if meta.tensors == read.expected:
        return True
    names = {spec.name for spec in read.expected}
    ours = {spec for spec in meta.tensors if spec.name in names}
    if meta.codec == DENSE and ours - set(read.expected):
        raise PageFailed(
            read.use.page, ForeignPage("the page's tensors differ from those it should join")
        )
    return False
