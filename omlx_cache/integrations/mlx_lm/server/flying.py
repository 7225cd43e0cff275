"""The flights of a batch's rows: how far each has computed its prompt, and where it stops for
others."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

from omlx_cache.flights import PromptFlight
from omlx_cache.integrations.rows import stop_row_at

Begin = Callable[[Sequence[int], int, Sequence[int]], PromptFlight | None]
"""Notes a prompt that is computed from a position on, kept at some later ones; see `Flights`."""


@dataclass(slots=True)
class _Row:
    """`ends` are of the segments that mlx-lm knows, `stops` those that others asked for."""

    flight: PromptFlight
    ends: frozenset[int]
    stops: set[int] = field(default_factory=set)


class RowFlights:
    """Flights by uid, from a row's insertion to its prompt's end. Use it on the model's thread.

    Rows that begin again after an error go on flying: what waits for them waits for that.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._rows: dict[int, _Row] = {}

    def begin(self, uid: int, held: Sequence[int], segments: Sequence[Sequence[int]]) -> None:
        """Note a row that was inserted: the tokens that its cache holds, and those to compute."""
        *ends, _length = accumulate(map(len, segments), initial=len(held))
        flight = self._begin([*held, *chain.from_iterable(segments)], len(held), ends)
        if flight is not None:
            self._rows[uid] = _Row(flight, frozenset(ends))

    def stop_where_wanted(self, generator: Any) -> None:
        """Have rows end a chunk where others part from their prompts."""
        for uid, row in self._rows.items():
            row.stops.update(set(row.flight.take_wanted()) - row.ends)
            for position in row.stops:
                # Each time: a row that has begun again knows nothing of it.
                stop_row_at(generator, uid, position)

    def is_stop(self, uid: int, position: int) -> bool:
        """True where a row stopped for others, and mlx-lm knows nothing of it."""
        row = self._rows.get(uid)
        return row is not None and position in row.stops

    def reach(self, uid: int, position: int) -> None:
        """Note how far a row was computed and stored, as far as it could be."""
        row = self._rows.get(uid)
        if row is not None:
            row.stops = {stop for stop in row.stops if stop > position}
            row.flight.reach(position)

    def end(self, uid: int) -> None:
        """Note that a row's prompt is computed, or will not be."""
        row = self._rows.pop(uid, None)
        if row is not None:
            row.flight.end()

    def end_all(self, but: Container[int] = ()) -> None:
        """End the flights of all rows but some."""
        for uid in [uid for uid in self._rows if uid not in but]:
            self.end(uid)
