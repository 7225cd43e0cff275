"""Plots as SVG: seconds over whatever lies across, and times over lengths, both by powers."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 640, 320, 48
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 24, 56
COLOURS = ("#b4512d", "#1f6f8b", "#8a8a8a", "#6b8e23", "#7a4e9c")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
Points = Sequence[tuple[float, float]]


def _document(width: int, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _text(x: float, y: float, text: str, style: str = 'text-anchor="middle"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _dots(places: Points, colour: str) -> list[str]:
    return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]


def _line(places: Points, colour: str, style: str = "") -> str:
    placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{placed}" fill="none" stroke="{colour}"{style}/>'


class Plot:
    """Seconds upwards to `top`, and to the right whatever the caller has, from 0 to 1."""

    def __init__(self, top: float) -> None:
        self._top = top
        self._parts: list[str] = []
        for share in (0.0, 0.5, 1.0):
            left, y = self._at(0, top * share)
            self._parts += [
                f'<path d="M{left} {y:.1f}H{WIDTH - MARGIN}" stroke="#dddddd"/>',
                _text(left - 6, y + 4, f"{top * share:.1f} s", 'text-anchor="end"'),
            ]

    def upright(self, across: float, name: str) -> None:
        """Draw a dashed line from top to bottom."""
        x, bottom = self._at(across, 0)
        self._parts += [
            f'<path d="M{x:.1f} {MARGIN}V{bottom}" stroke="#555555" stroke-dasharray="4 3"/>',
            _text(x + 4, MARGIN - 6, name, ""),
        ]

    def dots(self, number: int, name: str, points: Points) -> None:
        """Draw the points of one of the things compared, and its name in its colour."""
        colour = COLOURS[number % len(COLOURS)]
        self._parts += _dots([self._at(*point) for point in points], colour)
        place = MARGIN + 8 + 140 * number, MARGIN - 24
        self._parts.append(_text(*place, name, f'fill="{colour}"'))

    def line(self, number: int, points: Points) -> None:
        """Draw a line through points, in the colour of one of the things compared."""
        places = [self._at(*point) for point in points]
        self._parts.append(_line(places, COLOURS[number % len(COLOURS)]))

    def tick(self, across: float, text: str) -> None:
        """Write what lies at a place below the lowest line."""
        x, y = self._at(across, 0)
        self._parts.append(_text(x, y + 16, text))

    def end(self, caption: str) -> str:
        """Return the document, with a line of text below the plot."""
        parts = [*self._parts, _text(WIDTH / 2, HEIGHT - 12, caption)]
        return _document(WIDTH, HEIGHT, parts)

    def _at(self, across: float, seconds: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * across
        return x, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * seconds / self._top


def log_plot(series: Mapping[str, tuple[Points, Points]], caption: str) -> str:
    """Return times over lengths, both by powers: a straight line up is a power.

    Of each series the first points are a line with dots, the second a dashed line.
    """
    points = [point for both in series.values() for some in both for point in some]
    shortest, longest = min(x for x, _ in points), max(x for x, _ in points)
    first, last = math.log(shortest), math.log(max(2 * shortest, longest))
    lowest = math.floor(math.log10(min(y for _, y in points)))
    powers = range(lowest, math.ceil(math.log10(max(y for _, y in points))) + 1)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        across = (math.log(point[0]) - first) / (last - first)
        height = (math.log10(point[1]) - lowest) / (powers[-1] - lowest)
        x = LEFT + (WIDTH - LEFT - RIGHT) * across
        return x, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * height

    parts = []
    for power in powers:
        _, y = at((shortest, 10.0**power))
        parts += [
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>',
            _text(LEFT - 6, y + 4, _time(power), 'text-anchor="end"'),
        ]
    for length in sorted({int(x) for x, _ in points}):
        parts.append(_text(at((length, 10.0**lowest))[0], HEIGHT - BOTTOM + 16, _count(length)))
    for number, (name, (ours, bound)) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [at(point) for point in ours]
        dashed = ' stroke-dasharray="4 3" opacity="0.6"'
        name_at = WIDTH - RIGHT + 10, TOP + 14 + 18 * number
        parts += [_line(places, colour), _line([at(point) for point in bound], colour, dashed)]
        parts += [*_dots(places, colour), _text(*name_at, name, f'fill="{colour}"')]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, caption))
    return _document(WIDTH, HEIGHT, parts)


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
