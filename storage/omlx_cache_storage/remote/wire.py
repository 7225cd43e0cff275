"""A value's way into a store: cut into parts that it serves quickly, without a copy."""

from collections.abc import Sequence

from omlx_cache_storage.page import Buffer


def cut(pieces: Sequence[Buffer], part_bytes: int | None) -> list[list[Buffer]]:
    """Return a value's pieces as parts of so many bytes each, the last one shorter."""
    views = [view for piece in pieces if (view := memoryview(piece)).nbytes]
    if part_bytes is None:
        return [list(views)]
    parts: list[list[Buffer]] = [[]]
    room = part_bytes
    for whole in views:
        view = whole.cast("B")
        while view.nbytes:
            if not room:
                parts.append([])
                room = part_bytes
            taken, view = view[:room], view[room:]
            parts[-1].append(taken)
            room -= taken.nbytes
    return parts
