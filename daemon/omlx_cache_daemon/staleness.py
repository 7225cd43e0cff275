"""Which namespaces nobody restores any more, as far as this environment and running stores tell."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from omlx_cache.control.rows import NamespaceRow
from omlx_cache.identity.parts import installed
from omlx_cache_storage.documents import MLX, Versions


def current_versions(of_stores: Iterable[Versions]) -> list[Versions]:
    """Return the versions in use: the installed ones, if there is an MLX, and those of stores."""
    here = installed()
    known = [here] if here.get(MLX) else []
    return [*known, *(versions for versions in of_stores if versions)]


def with_staleness(
    rows: Sequence[NamespaceRow], of_stores: Iterable[Versions]
) -> list[NamespaceRow]:
    """Return namespaces, each with `stale`: None when its versions or those in use are unknown."""
    current = current_versions(of_stores)
    return [replace(row, stale=_is_stale(dict(row.versions), current)) for row in rows]


def _is_stale(needed: Versions, current: list[Versions]) -> bool | None:
    return needed not in current if needed and current else None
