"""Private cache classes whose whole state is a handful of attributes: kept as snapshots."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_cache.adapters.base import Phase, one_sequence
from omlx_cache.adapters.snapshot import SnapshotAdapter
from omlx_cache.arrays.mlxio import Array


@dataclass(frozen=True, slots=True)
class FieldsAdapter(SnapshotAdapter):
    """A class with array attributes (or None), an `offset`, and integer parameters."""

    fields: tuple[str, ...]
    parameters: tuple[str, ...] = ()

    def config(self, cache: Any) -> dict[str, int]:
        return {name: int(getattr(cache, name)) for name in self.parameters}

    def position(self, cache: Any) -> int | None:
        return int(cache.offset)

    def arrays(self, cache: Any) -> dict[str, Array]:
        values = {name: getattr(cache, name) for name in self.fields}
        arrays = {name: value for name, value in values.items() if value is not None}
        one_sequence(arrays)
        return arrays

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        for name in self.fields:
            setattr(cache, name, arrays.get(name))
        cache.offset = position
