"""A person at the screen: looks once a second, and at each key."""

import time
from collections.abc import Sequence

from omlx_cache_daemon.render import text
from omlx_cache_daemon.screen.cells import Ink
from omlx_cache_daemon.screen.layout import Line, Span, laid_out
from omlx_cache_daemon.screen.lookout import Lookout
from omlx_cache_daemon.screen.terminal import Screen
from omlx_cache_daemon.screen.view import SORTS, view_of
from omlx_cache_daemon.screen.watched import StoreSeen

_HELP = (
    "q          quit",
    "p, space   pause, and go on",
    "s          sort the busiest by another figure",
    "1-9        show one store; 0 all of them",
    "arrows     the next store, the one before",
    "?          this",
    "",
    "tokens/s   the mean of the last ten seconds",
    "total      since the store's start; saved is an estimate",
    "BUSIEST    what was asked in the last five minutes",
    "REASON     why no more was restored; omlx-cache why tells more",
)


class Session:
    """What a person chose. One thread."""

    def __init__(self, screen: Screen, lookout: Lookout, seconds: float, ink: Ink) -> None:
        self._screen, self._lookout = screen, lookout
        self._seconds, self._ink = seconds, ink
        self._chosen: str | None = None
        self._sort = next(iter(SORTS))
        self._helps = False
        self._paused: tuple[float, Sequence[StoreSeen]] | None = None

    def run(self) -> None:
        """Show the screen until q; Ctrl-C raises KeyboardInterrupt."""
        while True:
            self._draw()
            key = self._screen.key(self._seconds)
            if key in ("q", "Q"):
                return
            self._press(key)

    def _press(self, key: str) -> None:
        if key == "?":
            self._helps = not self._helps
        elif key:
            self._helps = self._helps and key == "resize"
        if key in ("p", " "):
            self._paused = None if self._paused else self._seen()
        elif key == "s":
            names = list(SORTS)
            self._sort = names[(names.index(self._sort) + 1) % len(names)]
        elif key.isdecimal():
            self._choose(int(key))
        elif key in ("left", "right"):
            self._step(1 if key == "right" else -1)

    def _choose(self, number: int) -> None:
        processes = self._seen()[1]
        if number <= len(processes):
            self._chosen = None if number == 0 else processes[number - 1].socket

    def _step(self, by: int) -> None:
        """Go round: all of them, then each."""
        places = [None, *(process.socket for process in self._seen()[1])]
        at = places.index(self._chosen) if self._chosen in places else 0
        self._chosen = places[(at + by) % len(places)]

    def _seen(self) -> tuple[float, Sequence[StoreSeen]]:
        return self._paused or (time.time(), self._lookout.processes())

    def _draw(self) -> None:
        rows, columns = self._screen.size()
        at, processes = self._seen()
        view = view_of(processes, self._chosen, at, self._sort, self._lookout.gone())
        lines = laid_out(view, columns, rows, self._ink, self._footer())
        if self._helps:
            lines = [*lines[:1], *([Span(f"  {line}")] for line in _HELP)]
        elif not processes:
            lines = _waiting(lines, view.notes)
        self._screen.draw(lines)

    def _footer(self) -> str:
        paused = "PAUSED  p go on" if self._paused else "p pause"
        return f"q quit  {paused}  s sort: {self._sort}  0-9 store  ? help"


def _waiting(lines: list[Line], notes: Sequence[str]) -> list[Line]:
    """Return the screen without a store: the first and last line, and what there is to say."""
    said: list[Line] = [[Span(" no store is running; waiting for one", "warn")]]
    said += [[Span(f" {text(note)}", "dim")] for note in notes]
    between = len(lines) - 3
    blank: list[Line] = [[] for _ in range(between)]
    return [lines[0], [], *[*said, *blank][:between], lines[-1]]
