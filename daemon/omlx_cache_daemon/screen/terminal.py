"""A terminal that is drawn on whole: keys, sizes, and its state of before on every way out."""

import contextlib
import curses
import locale
import os
import sys
from collections.abc import Iterator, Sequence

from omlx_cache_daemon.ending import sigterm_raises
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.screen.layout import Line

_COLOURS = {
    "full": curses.COLOR_CYAN,
    "good": curses.COLOR_GREEN,
    "warn": curses.COLOR_YELLOW,
    "bad": curses.COLOR_RED,
}
_KEYS = {
    curses.KEY_LEFT: "left",
    curses.KEY_RIGHT: "right",
    curses.KEY_UP: "left",
    curses.KEY_DOWN: "right",
    curses.KEY_RESIZE: "resize",
}


class Screen:
    """Draws lines, and sends a terminal only the cells that changed. One thread may use it."""

    def __init__(self, window: curses.window, *, styles: bool) -> None:
        self._window = window
        self._styles = _attributes() if styles else {}

    def size(self) -> tuple[int, int]:
        """Return the rows and columns that there are now.

        The kernel is asked: the signal that tells of another size may come to a thread of which
        curses learns nothing.
        """
        with contextlib.suppress(OSError, curses.error):
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
            if curses.is_term_resized(rows, columns):
                curses.resizeterm(rows, columns)
        return self._window.getmaxyx()

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these lines and nothing else."""
        self._window.erase()
        rows, _ = self.size()
        for row, line in enumerate(lines[:rows]):
            column = 0
            for span in line:
                encoding = self._window.encoding
                shown = span.text.encode(encoding, "replace").decode(encoding)
                # The last cell of the last row cannot be written without a scroll: curses writes
                # it and then complains.
                with contextlib.suppress(curses.error):
                    self._window.addstr(row, column, shown, self._styles.get(span.style, 0))
                column = self._window.getyx()[1]
        self._window.refresh()

    def key(self, seconds: float) -> str:
        """Return the key that was pressed within so many seconds, empty for none; `left`, `right`
        and `resize` have names."""
        self._window.timeout(max(0, int(seconds * 1000)))
        try:
            code = self._window.getch()
        except curses.error:
            return ""
        if code in _KEYS:
            return _KEYS[code]
        return chr(code) if 0 < code < 128 else ""


@contextlib.contextmanager
def full_screen(*, styles: bool) -> Iterator[Screen]:
    """Give the whole terminal, and leave it as it was, whatever ends the block, SIGTERM too.

    Raises CommandError for a terminal that cannot be drawn on.
    """
    # Without it curses counts bytes instead of characters.
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
    # A key that begins with an escape is decided on at once.
    os.environ.setdefault("ESCDELAY", "25")
    with sigterm_raises():
        try:
            window = curses.initscr()
        except curses.error as error:
            terminal = os.environ.get("TERM", "")
            raise CommandError(f"TERM={terminal}: {error}; --once prints one snapshot") from error
        try:
            curses.noecho()
            curses.cbreak()
            window.keypad(True)
            with contextlib.suppress(curses.error):
                curses.curs_set(0)
            yield Screen(window, styles=styles)
        finally:
            with contextlib.suppress(curses.error):
                curses.curs_set(1)
            window.keypad(False)
            curses.endwin()


def _attributes() -> dict[str, int]:
    """Return what each style is on this terminal; colours where it has them."""
    styles = {"title": curses.A_REVERSE, "head": curses.A_BOLD, "dim": curses.A_DIM}
    with contextlib.suppress(curses.error):
        curses.start_color()
        curses.use_default_colors()
        for number, (style, colour) in enumerate(_COLOURS.items(), 1):
            curses.init_pair(number, colour, -1)
            styles[style] = curses.color_pair(number)
    styles["bad"] = styles.get("bad", 0) | curses.A_BOLD
    return styles
