"""The shapes of a metric: a number, a text out of a few, a map from words to numbers."""

from typing import Final, Literal, NamedTuple

PREFIX: Final = "omlx_cache_"
Kind = Literal["counter", "gauge"]


class Place(NamedTuple):
    """Where a number lies: the path of keys to it, and the label that sets it apart, if any."""

    path: tuple[str, ...]
    label: tuple[str, str] | None = None


class Metric(NamedTuple):
    """A number of each process, or one for each value of a label that has few of them."""

    name: str
    kind: Kind
    help: str
    places: tuple[Place, ...]


class Choice(NamedTuple):
    """A text out of a few: 1 for what it is now, 0 for the others. Unknown texts are `other`."""

    name: str
    help: str
    path: tuple[str, ...]
    label: str
    words: tuple[str, ...]


class Split(NamedTuple):
    """A map from words to numbers: a number for each of the words. Unknown words are `other`."""

    name: str
    help: str
    path: tuple[str, ...]
    label: str
    words: frozenset[str]


def one(name: str, kind: Kind, path: str, text: str) -> Metric:
    """Return a number without a label, which lies at a path with dots."""
    return Metric(f"{PREFIX}{name}", kind, text, (Place(tuple(path.split("."))),))
