"""A plot of times over lengths as SVG, both by powers of ten: a straight line up is a power."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.growth_rows import GrowthRow

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 24, 56
COLOURS = ("#b4512d", "#1f6f8b", "#5b8c3e", "#7a4e9c", "#a8872b")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def svg(series: Mapping[str, Sequence[GrowthRow]], across: str) -> str:
    """Return a plot: of each series our times as a line with dots, its bound's as a dashed one.

    `across` says what the lengths are.
    """
    rows = [each for rows in series.values() for each in rows]
    times = [time for each in rows for time in (each.row.ours, each.row.other)]
    plot = _LogPlot([each.length for each in rows], times)
    for number, (name, points) in enumerate(series.items()):
        ours = [(each.length, each.row.ours) for each in points]
        bound = [(each.length, each.row.other) for each in points]
        plot.series(number, name, ours, bound)
    return plot.end(f"{across}; dashed: what each is set beside")


class _LogPlot:
    """Lengths to the right by powers of four, seconds upwards by powers of ten."""

    def __init__(self, lengths: Sequence[int], times: Sequence[float]) -> None:
        self._across = math.log(min(lengths)), math.log(max(2 * min(lengths), max(lengths)))
        self._powers = range(
            math.floor(math.log10(min(times))), math.ceil(math.log10(max(times))) + 1
        )
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        ]
        for power in self._powers:
            y = self._at(min(lengths), 10.0**power)[1]
            self._parts.append(
                f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_time(power)}</text>'
            )
        for length in sorted(set(lengths)):
            x = self._at(length, 10.0 ** self._powers[0])[0]
            self._parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                f"{_count(length)}</text>"
            )

    def series(
        self,
        number: int,
        name: str,
        ours: Sequence[tuple[int, float]],
        bound: Sequence[tuple[int, float]],
    ) -> None:
        """Draw a line with dots, one that is dashed, and a name in their colour at the right."""
        colour = COLOURS[number % len(COLOURS)]
        places = [self._at(*point) for point in ours]
        self._parts += [
            self._line(ours, colour, ""),
            self._line(bound, colour, ' stroke-dasharray="4 3" opacity="0.6"'),
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places),
            f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 14 + 18 * number}" fill="{colour}">'
            f"{escape(name)}</text>",
        ]

    def end(self, caption: str) -> str:
        self._parts.append(
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">'
            f"{escape(caption)}</text></svg>"
        )
        return "\n".join(self._parts) + "\n"

    def _line(self, points: Sequence[tuple[int, float]], colour: str, style: str) -> str:
        placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self._at(*point) for point in points))
        return f'<polyline points="{placed}" fill="none" stroke="{colour}"{style}/>'

    def _at(self, length: int, seconds: float) -> tuple[float, float]:
        first, last = self._across
        x = LEFT + (WIDTH - LEFT - RIGHT) * (math.log(length) - first) / (last - first)
        height = (math.log10(seconds) - self._powers[0]) / (self._powers[-1] - self._powers[0])
        return x, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * height


def _time(power: int) -> str:
    for unit, name in _UNITS:
        if 10.0**power >= 0.99 * unit:
            return f"{10.0**power / unit:.0f} {name}"
    return f"{10.0 ** (power + 6):g} us"


def _count(number: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if number >= unit:
            return f"{number / unit:g}{name}"
    return str(number)
