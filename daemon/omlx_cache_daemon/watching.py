"""Asking a store again and again, until somebody has seen enough."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import NobodyThere
from omlx_cache_daemon.render import text, uses_styles
from omlx_cache_daemon.replies import Map, as_map

HEADER_EVERY = 20


def until_interrupted(step: Callable[[], None], seconds: float) -> None:
    """Call `step` every so many seconds until Ctrl-C, which is the normal end.

    Raises NobodyThere when the store goes.
    """
    try:
        following = time.monotonic()
        while True:
            step()
            sys.stdout.flush()
            following = max(following + seconds, time.monotonic())
            time.sleep(max(0.0, following - time.monotonic()))
    except KeyboardInterrupt:
        return


def ask(client: Client, op: str, **args: Any) -> Map:
    """Return the map that a store answers with; raises NobodyThere when it has gone."""
    try:
        return as_map(client.call(op, **args))
    except NobodyThere as error:
        raise NobodyThere(f"the store has gone: {error}") from error


class Lines:
    """Prints rows under headers that come again every 20 lines; columns keep their widths.

    A column is its header and its width, negative for text, which stands on the left.
    """

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self._columns = columns
        self._printed = 0
        self._begun = False

    def begin(self) -> None:
        """Print the headers at once, before there is a row."""
        line = self._line([header for header, _ in self._columns])
        sys.stdout.write(f"\x1b[1m{line}\x1b[0m\n" if uses_styles(sys.stdout) else f"{line}\n")
        sys.stdout.flush()
        self._begun = True

    def print(self, cells: Sequence[object]) -> None:
        if self._printed % HEADER_EVERY == 0 and (self._printed or not self._begun):
            self.begin()
        self._printed += 1
        sys.stdout.write(self._line(cells) + "\n")

    def _line(self, cells: Sequence[object]) -> str:
        shown = []
        for cell, (_, width) in zip(map(text, cells), self._columns, strict=True):
            shown.append(cell.rjust(width) if width > 0 else cell.ljust(-width))
        return "  ".join(shown).rstrip()
