"""`docs/fidelity.csv`: what was measured of each family, one line each, written and read back."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from .cases import POSITIONS
from .conversation import ANSWER, LENGTHS, Retention
from .matrix import TIERS, FamilyResult
from .mixtures import classes

PATH = Path(__file__).parents[2] / "docs" / "fidelity.csv"
HEADER = (
    "family",
    "cache classes",
    *POSITIONS,
    "controls",
    *(f"two turns, {length} tokens" for length in LENGTHS),
)
TOO_LONG = "longer than its position table"


class Record(NamedTuple):
    """A family's line. `cells` are the kinds of restore and the controls, `turns` the lengths."""

    family: str
    classes: str
    cells: tuple[str, ...]
    turns: tuple[str, ...]


def record(result: FamilyResult, found: Sequence[Retention]) -> Record:
    """Return the line of a family that was measured whole."""
    turns = [turns_cell(retention) for retention in found]
    turns += [TOO_LONG] * (len(LENGTHS) - len(turns))
    return Record(result.name, classes(result.name), matrix_cells(result), tuple(turns))


def matrix_cells(result: FamilyResult) -> tuple[str, ...]:
    """Return a cell for each kind of restore, then how many of the controls failed."""
    if result.problem:
        return (result.problem, *[""] * len(POSITIONS))
    measured = [cell for tiers in result.cells.values() for cell in tiers.values()]
    controls = sum(cell.controls for cell in measured)
    failed = controls - sum(len(cell.missed) for cell in measured)
    return (*(_cell(result, position) for position in POSITIONS), f"{failed} of {controls}")


def _cell(result: FamilyResult, position: str) -> str:
    tiers = [result.cells[position][tier] for tier in TIERS]
    counts = sorted({cell.restored for cell in tiers}, reverse=True)
    text = "/".join(map(str, counts)) + " " + "".join("x="[cell.exact] for cell in tiers)
    if position == "mid-sequence branch" and result.first_visit < counts[0]:
        text += f" (first {result.first_visit})"
    return text


def turns_cell(found: Retention) -> str:
    """Return what two second turns restored, each of what it shares with the first."""
    return f"{found.continued} of {found.prompt + ANSWER}, {found.edited} of {found.prompt}"


def write(records: Iterable[Record]) -> str:
    """Return the file's text."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(HEADER)
    lines.writerows([each.family, each.classes, *each.cells, *each.turns] for each in records)
    return text.getvalue()


def read() -> dict[str, Record]:
    """Return the committed records by family, in the file's order."""
    header, *lines = csv.reader(io.StringIO(PATH.read_text(encoding="utf-8")))
    if tuple(header) != HEADER:
        raise ValueError(f"{PATH.name} has other columns; write it anew with python -m fidelity")
    split = 2 + len(POSITIONS) + 1
    return {
        line[0]: Record(line[0], line[1], tuple(line[2:split]), tuple(line[split:]))
        for line in lines
    }
