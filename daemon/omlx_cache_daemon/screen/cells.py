"""Text of a known width: bars, columns of blocks, and what fits a number of cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import combining, east_asian_width

from omlx_cache_daemon.render import text


@dataclass(frozen=True, slots=True)
class Ink:
    """The characters that bars are made of: from nothing to full, then the empty part of a bar."""

    steps: str
    full: str
    empty: str


BLOCKS = Ink(" ▁▂▃▄▅▆▇█", "█", "░")
ASCII = Ink(" .:-=+*%#", "#", ".")


def ink_for(encoding: str | None) -> Ink:
    """Return what an encoding can say."""
    try:
        (BLOCKS.steps + BLOCKS.empty).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def cell_width(shown: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if shown.isascii():
        return len(shown)
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in shown)


def fitted(value: object, width: int, *, right: bool = False) -> str:
    """Return the printable text of a value in exactly `width` cells, cut or filled up."""
    shown = text(value)
    if cell_width(shown) > width:
        kept, used = "", 0
        for c in shown:
            used += cell_width(c)
            if used > width:
                break
            kept += c
        shown = kept
    space = " " * (width - cell_width(shown))
    return space + shown if right else shown + space


def bar(part: float, whole: float, width: int, ink: Ink) -> str:
    """Return a bar that is full by part of whole; anything at all is one cell at least."""
    share = min(1.0, part / whole) if whole > 0 else 0.0
    cells = max(int(share * width), 1 if share > 0 else 0)
    return ink.full * cells + ink.empty * (width - cells)


def columns(values: Sequence[float], height: int, ink: Ink) -> list[str]:
    """Return lines, the topmost first, with a column for each value; the highest fills all."""
    peak, steps = max(values, default=0), len(ink.steps) - 1
    lines = []
    for row in range(height - 1, -1, -1):
        line = ""
        for value in values:
            eighths = value / peak * height * steps - row * steps if peak > 0 else 0
            at = min(steps, max(0, round(eighths)))
            if row == 0 and value > 0:
                at = max(at, 1)
            line += ink.steps[at]
        lines.append(line)
    return lines
