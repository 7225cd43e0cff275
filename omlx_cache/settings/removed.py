"""Removed settings and values: a server that still sets them starts, with one warning for each."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

REMOVED: Final = {
    "eviction_policy": "every store does what `keep` did; `omlx-cache simulate` compares that with "
    "`lru`",
    "memory_once": "hot_bytes=0 holds a conversation once while it is computed; its next turn is "
    "read from the disk",
    "min_free_memory_bytes": "a sixteenth of physical memory stays free, at most 2 GiB",
    "queue_full": "a last commit waits `commit_wait_seconds` for the writer, while pages get "
    "written",
    "remote_codec": "dense pages are packed for the way where the extra `zstd` is installed",
    "remote_connections": "pages are read over eight connections",
    "restore_bytes": "restores that were begun ahead share an eighth of physical memory",
    "restore_wait_seconds": "a session waits two seconds for the disk, and a millisecond for each "
    "token of its prompt, unless it has a `deadline=`",
    "restore_wait_seconds_per_token": "a session waits two seconds for the disk, and a millisecond "
    "for each token of its prompt, unless it has a `deadline=`",
    "share_wait_seconds": "a request waits for another that computes its prefix, ten minutes at "
    "most",
    "snapshot_bytes": "windows and snapshots share a quarter of `hot_bytes`, or of its default "
    "where that is 0",
    "status_port": "status=PORT names the port too",
    "write_delay_seconds": "write_policy=lazy writes a page after five minutes at the latest",
    "write_idle_seconds": "write_policy=lazy writes what is left after a minute without requests",
}
"""Each removed setting, and what takes its place."""


class Successor(NamedTuple):
    """The value that takes a removed value's place, and why."""

    value: str
    reason: str


LONGEST_WAIT: Final = 86_400
"""Seconds that a commit may wait for the writer at most: a day, so for as long as it progresses."""


class Taken(NamedTuple):
    """The setting and the value that a removed setting is taken for, and how a person writes it."""

    setting: str
    value: Any
    words: str


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


def replaced_values(given: Mapping[str, tuple[str, Any]]) -> list[str]:
    """Return a warning for each removed value that was given; `given` has for each setting the name
    that it came under and what came."""
    found = []
    for name, (shown, raw) in given.items():
        value = raw.strip().lower() if isinstance(raw, str) else raw
        if (instead := successor(name, value)) != value:
            found.append(f"{shown}: {value} is {instead} now: {VALUES[name, value].reason}")
    return found


def take_over(
    removed: Mapping[str, tuple[str, Any]],
    given: dict[str, tuple[str, Any]],
    arguments: dict[str, Any],
) -> list[str]:
    """Add to `given` and `arguments` what removed settings are taken for; return a warning for each
    of them."""
    found = []
    for name, (shown, raw) in removed.items():
        if taken := _taken_for(name, raw, given):
            given[taken.setting] = (shown, taken.value)
            arguments[taken.setting] = taken.value
            found.append(f"{shown} is {taken.words} now: {REMOVED[name]}")
        else:
            found.append(f"{shown} has no effect any more: {REMOVED[name]}")
    return found


def _taken_for(name: str, raw: object, given: Mapping[str, tuple[str, Any]]) -> Taken | None:
    """Return what a removed setting is taken for, None for nothing: its value says what a store
    does anyway, or the setting that took its place was given as well."""
    if name == "queue_full" and str(raw).strip().lower() == "wait":
        return Taken("commit_wait_seconds", LONGEST_WAIT, f"commit_wait_seconds={LONGEST_WAIT}")
    return None
