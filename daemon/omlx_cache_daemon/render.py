"""Plain text and JSON for people and programs. Values are data: control characters are shown."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import compress
from sys import maxsize
from textwrap import fill, wrap
from typing import TextIO

from omlx_cache.settings.sizes import duration, format_size

SCHEMA_VERSION = 1
"""Of what commands print with --format json (schema.json). Fields may be added within a
version; one that goes, or means something else, makes the next."""

HEADER_EVERY = 20
_LEAST_FOLDED = 20
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def is_interactive(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def uses_styles(stream: TextIO) -> bool:
    """A non-empty NO_COLOR says no."""
    return is_interactive(stream) and not os.environ.get("NO_COLOR")


def terminal_width() -> int:
    return shutil.get_terminal_size((maxsize, 0)).columns if sys.stdout.isatty() else maxsize


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print one JSON document and nothing else; a map gets `schema_version`. Without an indent it
    is a line."""
    sys.stdout.write(json.dumps(_versioned(value), default=_plain, indent=indent) + "\n")


def print_answer(as_json: bool, document: object, shown: str) -> None:
    if as_json:
        print_json(document)
    else:
        sys.stdout.write(shown)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, bold: bool = False) -> str:
    """Return columns under headers; a column of numbers and sizes is aligned to the right, and one
    without any value is left out, except the first. A terminal that is too narrow gets the last
    column folded; of many columns a block for each row, with a line for each cell that is not
    empty."""
    cells = [[text(cell) for cell in row] for row in rows]
    shown = [
        not (at and cells) or any(row[at] not in ("", "-") for row in cells)
        for at in range(len(headers))
    ]
    headers, cells = list(compress(headers, shown)), [list(compress(row, shown)) for row in cells]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    width = sum(widths) + 2 * len(widths) - 2
    room = min(width, terminal_width())
    if len(widths) > 5 and width > room:
        said = ([(h, c) for h, c in zip(headers, row, strict=True) if c != "-"] for row in cells)
        return "\n".join(map(facts, said))
    sides = [
        width if cells and all(_is_numeric(row[at]) for row in cells) else -width
        for at, width in enumerate(widths)
    ]
    least = max(_LEAST_FOLDED, widths[-1] - (width - room))
    lines = []
    for row in [headers, *cells]:
        first, *more = wrap(row[-1], least) or [""]
        lines += [_line([*row[:-1], first], sides)]
        lines += [" " * (width - widths[-1]) + part for part in more]
    if bold:
        lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
    return "\n".join(lines) + "\n"


class Lines:
    """Prints rows as they come, with headers at first and again every 20 rows.

    A column is its header and its width, negative for text, which stands on the left. On a narrow
    terminal the `spare` columns are left out, one by one. Mutable: `_printed`, how many rows there
    were.
    """

    def __init__(self, columns: Sequence[tuple[str, int]], spare: Sequence[str] = ()) -> None:
        hidden = set[str]()
        for name in spare:
            if sum(abs(w) + 2 for header, w in columns if header not in hidden) > terminal_width():
                hidden.add(name)
        self._shown = [header not in hidden for header, _ in columns]
        self._headers, self._widths = zip(*compress(columns, self._shown), strict=True)
        self._indent = " " * sum(abs(width) + 2 for width in self._widths[:-1])
        self._printed = 0
        self._begin()

    def print(self, cells: Sequence[object]) -> None:
        if self._printed and self._printed % HEADER_EVERY == 0:
            self._begin()
        self._printed += 1
        line = _line(list(map(text, compress(cells, self._shown))), self._widths)
        sys.stdout.write(f"{_fold(line, self._indent)}\n")

    def _begin(self) -> None:
        # At once, so that it is seen to wait.
        line = _line(self._headers, self._widths)
        sys.stdout.write(f"{_BOLD}{line}{_PLAIN}\n" if uses_styles(sys.stdout) else f"{line}\n")
        sys.stdout.flush()


def folded(shown: str) -> str:
    """Break lines at blanks to fit the terminal, but for those with an option in them: they may be
    commands to copy."""
    return "".join(
        f"{line if ' -' in line else _fold(line, '    ')}\n" for line in shown.splitlines()
    )


def facts(pairs: Iterable[tuple[str, object]], indent: str = "") -> str:
    shown = [(text(name), text(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    return "".join(f"{indent}{name:<{width}}  {value}\n" for name, value in shown)


def quantity(name: str, value: object) -> str:
    """Return a value for people, in the unit that its name ends with (bytes, _s, _seconds)."""
    if value is None or isinstance(value, bool | str) or not isinstance(value, int | float):
        return text(value)
    if name.endswith("bytes"):
        return format_size(int(value))
    if name.endswith(("_s", "_seconds")):
        return duration(float(value))
    if isinstance(value, int) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def local_time(value: object) -> str:
    moment = moment_of(value)
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def moment_of(value: object) -> datetime | None:
    """Return the local time that a date of ISO 8601 says, None for a value that is no date."""
    try:
        return datetime.fromisoformat(value if isinstance(value, str) else "").astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def text(value: object) -> str:
    """Return one line of printable text for any value that a store sends."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{text(key)} {text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value))
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def warn(told: Mapping[str, object]) -> None:
    """Write on standard error those lines that are so."""
    sys.stderr.writelines(f"omlx-cache: {line}\n" for line, is_so in told.items() if is_so)


def confirmed(question: str, otherwise: str) -> bool:
    sys.stderr.write(f"{lines(question)}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    sys.stderr.write(f"omlx-cache: {otherwise}\n")
    return False


def lines(value: object) -> str:
    """Return printable text that may have several lines: a message, with a name or path in it."""
    return "\n".join(map(text, str(value).split("\n")))


def _versioned(value: object) -> object:
    if hasattr(value, "__dataclass_fields__"):
        value = _plain(value)
    return {"schema_version": SCHEMA_VERSION, **value} if isinstance(value, Mapping) else value


def _is_numeric(cell: str) -> bool:
    # Not a date, and not a digest that begins with a digit.
    return cell == "-" or re.match(r"\d[\d,.]*[%x]?( |$)", cell) is not None


def _fold(line: str, indent: str) -> str:
    return fill(
        line,
        terminal_width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.rjust(width) if width > 0 else cell.ljust(-width)
        for cell, width in zip(row, widths, strict=True)
    ).rstrip()


def _plain(value: object) -> object:
    if hasattr(value, "__dataclass_fields__"):
        from omlx_cache.control.serialization import document

        return document(value)
    return value.hex() if isinstance(value, bytes) else str(value)
