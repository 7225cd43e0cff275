"""Which namespaces nobody restores any more, as far as this environment and running stores tell."""

from collections.abc import Iterable

from omlx_cache.identity.parts import installed
from omlx_cache_daemon.replies import Map
from omlx_cache_storage.documents import MLX, Versions, as_versions


def current_versions(of_stores: Iterable[Versions]) -> list[Versions]:
    """Return the versions in use: the installed ones, if there is an MLX, and those of stores."""
    here = installed()
    known = [here] if here.get(MLX) else []
    return [*known, *(versions for versions in of_stores if versions)]


def with_staleness(rows: list[Map], of_stores: Iterable[Versions]) -> list[Map]:
    """Return namespaces, each with `stale`: None when its versions or those in use are unknown."""
    current = current_versions(of_stores)
    return [{**row, "stale": _is_stale(as_versions(row.get("versions")), current)} for row in rows]


def _is_stale(needed: Versions, current: list[Versions]) -> bool | None:
    return needed not in current if needed and current else None
