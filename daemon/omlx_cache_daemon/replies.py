"""Checks the shape of a store's reply, which may come from another version of this program."""

from typing import TypeVar

from omlx_cache_daemon.errors import CommandError

T = TypeVar("T")
Map = dict[str, object]


def as_answer(kind: type[T], reply: object) -> T:
    """Return a reply as the dataclass that it is of; raises CommandError for another version's."""
    from omlx_cache.control.answers import OtherShape, read

    try:
        return read(kind, reply)
    except OtherShape as error:
        raise other_version(str(error)) from error


def other_version(why: str) -> CommandError:
    """Return the one line about an answer that is not this version's."""
    return CommandError(
        f"the store is of another version of omlx-cache: {why}; restart it, or use the command of "
        "its version"
    )


def as_map(reply: object) -> Map:
    """Return a reply that must be a map; raises CommandError for anything else."""
    if not isinstance(reply, dict):
        raise other_version(f"it sent {type(reply).__name__} where a map was expected")
    return reply


def as_maps(reply: object) -> list[Map]:
    """Return a reply that must be a list of maps; raises CommandError for anything else."""
    if not isinstance(reply, list):
        raise other_version(f"it sent {type(reply).__name__} where a list was expected")
    return [as_map(item) for item in reply]


def count_of(reply: Map, column: str) -> int:
    """Return a whole number of a reply, 0 for anything else."""
    count = reply.get(column)
    return count if isinstance(count, int) else 0
