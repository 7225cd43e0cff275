"""Wall time that is covered by intervals which may overlap: each moment counts once."""

from bisect import bisect_left

MOST_SPANS = 64


class Intervals:
    """The union of the intervals that were added, in any order, as seconds.

    Only the latest 64 stretches are kept apart; what lies before them counts no more, so that
    `seconds` is never more than the union. Mutable; its owner guards it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._spans: list[tuple[float, float]] = []
        self._floor = float("-inf")

    def add(self, begin: float, end: float) -> float:
        """Cover the time from `begin` to `end`, and return how much of it was not covered before;
        an empty interval covers nothing."""
        begin = max(begin, self._floor)
        if not begin < end:
            return 0.0
        first = last = bisect_left(self._spans, begin, key=lambda span: span[1])
        known = 0.0
        while last < len(self._spans) and self._spans[last][0] <= end:
            span = self._spans[last]
            known += span[1] - span[0]
            begin, end = min(begin, span[0]), max(end, span[1])
            last += 1
        self._spans[first:last] = [(begin, end)]
        new = end - begin - known
        self.seconds += new
        if len(self._spans) > MOST_SPANS:
            self._floor = self._spans.pop(0)[1]
        return new
