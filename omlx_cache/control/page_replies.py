"""Processes' replies about their pages: a frozen dataclass for each kind of row."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from omlx_cache_storage.page import TensorSpec

SHOWN_DIGITS, SHOWN_MATCHES = 16, 5
"""Of a digest or key, and of what begins alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRow:
    """Pages of one model, salt, layout and versions; `stale` is null where that is not known."""

    namespace: str
    label: str
    pages: int
    bytes: int
    tokens: int
    groups: Sequence[str]
    tiers: Sequence[str]
    created_at: str | None
    used_at: str | None
    versions: Mapping[str, str]
    salt: str
    stale: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A page: the keys and values of one block of tokens of one group of layers. `age_s` is null
    for one that is superseded and leaves first."""

    key: str
    group: str
    position: int
    tokens: int
    bytes: int
    tiers: Sequence[str]
    namespace: str
    path: str
    age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDetails(PageRow):
    """A page with its description, from its file or from memory. `error` says why there is none;
    `data` is verified, damaged, or why the file was not read, once it was checked."""

    parent: str | None = None
    tail: bool | None = None
    codec: str | None = None
    checksum: str | None = None
    data_offset: int | None = None
    tensors: Sequence[TensorSpec] = ()
    data: str | None = None
    error: str | None = None


def several(digests: Collection[str], prefix: str) -> str:
    """Return in words that several namespaces begin so."""
    shown = [digest[:SHOWN_DIGITS] for digest in sorted(digests)[:SHOWN_MATCHES]]
    more = ", ..." * (len(digests) > SHOWN_MATCHES)
    return f"{len(digests)} namespaces begin with {prefix}: {', '.join(shown)}{more}"
