"""Which page a member is."""

from typing import NamedTuple

from omlx_cache_daemon.archive.manifest import ArchiveError
from omlx_cache_storage.format.names import PageName, format_name, parse_name, shard_of
from omlx_cache_storage.keys import BlockKey

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
