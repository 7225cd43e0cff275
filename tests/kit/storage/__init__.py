"""Pages with checkable contents, small stores, and a disk that fails on demand."""

from .faults import FaultyDisk, HandClock, Seconds, SetTime
from .pages import (
    Story,
    bytes_of,
    disk_usage,
    expected_payload,
    files_in,
    open_cold,
    read_cold,
    write_pages,
)
from .stores import (
    WriterRig,
    check_integrity,
    commit,
    end_write,
    fetch,
    is_right,
    open_store,
    put,
    set_budget,
    settings,
    state_of,
    store_page,
)

__all__ = [
    "FaultyDisk",
    "HandClock",
    "Seconds",
    "SetTime",
    "Story",
    "WriterRig",
    "bytes_of",
    "check_integrity",
    "commit",
    "disk_usage",
    "end_write",
    "expected_payload",
    "fetch",
    "files_in",
    "is_right",
    "open_cold",
    "open_store",
    "put",
    "read_cold",
    "set_budget",
    "settings",
    "state_of",
    "store_page",
    "write_pages",
]
