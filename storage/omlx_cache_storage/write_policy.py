"""When a page of memory goes to the disk: the write policies, and a write that is queued."""

from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from omlx_cache_storage.page import PageId


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """When a page that memory has goes to the disk.

    `at_once`: when it is stored, and when it is used again. Else when memory is to evict it, and
    not at all once a longer page has replaced it. `idle_seconds`: when nothing was stored or used
    for so long and the writer is idle, the remaining pages are queued. `delay_seconds`: so long
    after it was stored a page is queued at the latest.
    """

    at_once: bool
    idle_seconds: float
    delay_seconds: float = inf


WRITE_POLICIES: Final = MappingProxyType(
    {
        "through": WritePolicy(at_once=True, idle_seconds=0.0),
        # After a minute without requests writing disturbs no request; a kill costs five minutes.
        "lazy": WritePolicy(at_once=False, idle_seconds=60.0, delay_seconds=300.0),
    }
)


class Write(NamedTuple):
    """A queued write: of which page, how large that was, and when its stay had begun."""

    page: PageId
    nbytes: int
    came_ns: int
