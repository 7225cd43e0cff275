"""Removed settings and values: a server that still sets them starts, with one warning for each."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

REMOVED: Final = {
    "eviction_policy": "every store does what `keep` did; `omlx-cache simulate` compares that with "
    "`lru`",
    "memory_once": "hot_bytes=0 holds a conversation once while it is computed; its next turn is "
    "read from the disk",
    "remote_codec": "dense pages are packed for the way where the extra `zstd` is installed",
    "remote_connections": "pages are read over eight connections",
    "restore_bytes": "restores that were begun ahead share an eighth of physical memory",
    "restore_wait_seconds": "a session waits two seconds for the disk, and a millisecond for each "
    "token of its prompt, unless it has a `deadline=`",
    "restore_wait_seconds_per_token": "a session waits two seconds for the disk, and a millisecond "
    "for each token of its prompt, unless it has a `deadline=`",
    "status_port": "status=PORT names the port too",
    "write_delay_seconds": "write_policy=lazy writes a page after five minutes at the latest",
    "write_idle_seconds": "write_policy=lazy writes what is left after a minute without requests",
}
"""Each removed setting, and what takes its place."""


class Successor(NamedTuple):
    """The value that takes a removed value's place, and why."""

    value: str
    reason: str


VALUES: Final = {
    ("write_policy", "back"): Successor(
        "lazy", "it writes what memory evicts too, and no page that a longer one has replaced"
    ),
    ("write_policy", "second_touch"): Successor(
        "lazy",
        "it is the nearest, and writes pages that are used once too; daily_write_bytes limits "
        "what is written",
    ),
}
"""Removed values of settings that stay."""


def successor(setting: str, value: object) -> object:
    """Return the value that takes the place of a removed one; any other value as it is."""
    found = VALUES.get((setting, value)) if isinstance(value, str) else None
    return value if found is None else found.value


def removal_warnings(
    removed: Mapping[str, tuple[str, Any]], given: Mapping[str, tuple[str, Any]]
) -> list[str]:
    """Return a warning for each removed setting and each removed value that was given; both maps
    have for each setting the name that it came under and what came."""
    found = [
        f"{shown} has no effect any more: {REMOVED[name]}" for name, (shown, _) in removed.items()
    ]
    for name, (shown, raw) in given.items():
        value = raw.strip().lower() if isinstance(raw, str) else raw
        if (instead := successor(name, value)) != value:
            found.append(f"{shown}: {value} is {instead} now: {VALUES[name, value].reason}")
    return found
