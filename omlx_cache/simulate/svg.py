"""A plot as SVG, of seconds mostly: its frame, its lines and its words."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 640, 320, 48
COLOURS = ("#b4512d", "#1f6f8b", "#8a8a8a", "#6b8e23")


class Plot:
    """Seconds, or what has another `unit`, upwards to `top`, and to the right whatever the caller
    has, from 0 to 1."""

    def __init__(self, top: float, unit: str = "s") -> None:
        self._top = top
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        ]
        for share in (0.0, 0.5, 1.0):
            left, y = self._at(0, top * share)
            value = f"{top * share:.1f} {unit}"
            self._parts.append(
                f'<path d="M{left} {y:.1f}H{WIDTH - MARGIN}" stroke="#dddddd"/>'
                f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>'
            )

    def upright(self, across: float, name: str) -> None:
        """Draw a dashed line from top to bottom."""
        x, bottom = self._at(across, 0)
        self._parts.append(
            f'<path d="M{x:.1f} {MARGIN}V{bottom}" stroke="#555555" stroke-dasharray="4 3"/>'
            f'<text x="{x + 4:.1f}" y="{MARGIN - 6}">{escape(name)}</text>'
        )

    def dots(self, number: int, name: str, points: Sequence[tuple[float, float]]) -> None:
        """Draw the points of one of the things compared, and its name in its colour."""
        colour = COLOURS[number % len(COLOURS)]
        placed = [self._at(across, seconds) for across, seconds in points]
        self._parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in placed
        ]
        self._parts.append(
            f'<text x="{MARGIN + 8 + 140 * number}" y="{MARGIN - 24}" fill="{colour}">'
            f"{escape(name)}</text>"
        )

    def line(self, number: int, points: Sequence[tuple[float, float]]) -> None:
        """Draw a line through points, in the colour of one of the things compared."""
        placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self._at(*point) for point in points))
        colour = COLOURS[number % len(COLOURS)]
        self._parts.append(f'<polyline points="{placed}" fill="none" stroke="{colour}"/>')

    def tick(self, across: float, text: str) -> None:
        """Write what lies at a place below the lowest line."""
        x, y = self._at(across, 0)
        self._parts.append(f'<text x="{x:.1f}" y="{y + 16}" text-anchor="middle">{text}</text>')

    def end(self, caption: str) -> str:
        """Return the document, with a line of text below the plot."""
        self._parts.append(
            f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
            f"{escape(caption)}</text></svg>"
        )
        return "\n".join(self._parts) + "\n"

    def _at(self, across: float, seconds: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * across
        return x, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * seconds / self._top
