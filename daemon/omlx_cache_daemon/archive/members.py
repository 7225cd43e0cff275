"""Which page a member is, and whether its bytes are that page's."""

from typing import NamedTuple

from omlx_cache_daemon.archive.manifest import ArchiveError
from omlx_cache_storage.errors import CorruptPage, ForeignPage
from omlx_cache_storage.format.header import Header, decode_header, payload_checksum
from omlx_cache_storage.format.names import PageName, format_name, name_of, parse_name, shard_of
from omlx_cache_storage.format.wrapping import unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page

MAX_PAGE_BYTES = 1 << 30


class PageAt(NamedTuple):
    """A page, and the namespace that it lies in."""

    namespace: BlockKey
    name: PageName

    @property
    def path(self) -> str:
        """The member's name."""
        directory = f"{self.namespace.hex()}/{shard_of(self.name.id.key)}"
        return f"{directory}/{format_name(self.name)}"


def parse_path(path: str) -> PageAt:
    """Return which page a member's name stands for; raises ArchiveError unless `PageAt.path` would
    give exactly this name, `./` before it aside."""
    parts = path.removeprefix("./").split("/")
    name = parse_name(parts[2]) if len(parts) == 3 else None
    if name is None or len(parts[0]) != 64:
        raise ArchiveError(f"{path[:200]!r} is no name of a page")
    try:
        page = PageAt(BlockKey(bytes.fromhex(parts[0])), name)
    except ValueError:
        page = None
    if page is None or page.path != "/".join(parts):
        raise ArchiveError(f"{path[:200]!r} is no name of a page")
    return page


def checked(raw: bytes, at: PageAt) -> Page:
    """Return the page of a file's bytes, as it lies on the disk; raises PageError unless it is
    whole, undamaged, and the one that its name says."""
    header = decode_header(raw)
    _check_name(header, at)
    payload = memoryview(raw)[header.data_offset :]
    if payload.nbytes != header.meta.nbytes:
        raise CorruptPage(
            f"a payload of {payload.nbytes} bytes, its header says {header.meta.nbytes}"
        )
    if payload_checksum(payload) != header.checksum:
        raise CorruptPage("the payload does not match its checksum")
    return Page(header.meta, payload)


def _check_name(header: Header, at: PageAt) -> None:
    meta = unwrapped(header.meta)
    if (meta.namespace, name_of(meta)) != (at.namespace, at.name):
        raise ForeignPage("the file holds another page than its name says")
