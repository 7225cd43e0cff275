"""The screen of `omlx-cache ps --watch`: what stores do, drawn by rich as the terminal allows."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, reduce
from operator import attrgetter

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from omlx_cache.control.replies import ExplainedRequest, last_name
from omlx_cache.settings.sizes import duration, format_size
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.figures import Rates, added_up, rate, time_saved, total
from omlx_cache_daemon.lookout import (
    ANSWER_SECONDS,
    STEP_SECONDS,
    STEPS,
    Lookout,
    Watched,
    busiest,
    name_of,
    series,
)
from omlx_cache_daemon.process import sigterm_raises
from omlx_cache_daemon.render import is_interactive, quantity, text, uses_styles
from omlx_cache_daemon.stores import StoreReply

_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*%#"
_NARROWEST_BAR, _WIDEST_BAR, _BESIDE_BAR = 8, 60, 62
_HIGHEST_GRAPH, _MOST_BUSY, _FIRST_SECONDS, _DRAW_SECONDS = 6, 12, 0.5, 0.5
_KEYS = "q quit  p pause  1-9 one store, 0 all"

Part = tuple[str, str]
"""Words, and rich's name of their style, perhaps empty."""


_column = partial(Column, no_wrap=True)
Columns = Sequence[tuple[int, Column]]
"""Columns of a table, each with the width from which on terminals show it."""
_BUSY: Columns = (
    (0, _column("BUSIEST", max_width=40)),
    (100, _column("SALT")),
    (0, _column("RESTORED", justify="right")),
    (50, _column("ASKED", justify="right")),
    (0, _column("HIT%", justify="right")),
    (70, _column("REQUESTS", justify="right")),
    (110, _column("NAMESPACE")),
    (90, _column("LAST")),
)
_REQUESTS: Columns = (
    (0, _column("TIME")),
    (100, _column("PID", justify="right")),
    (50, _column("NUMBER", justify="right")),
    (70, _column("MODEL", max_width=24)),
    (0, _column("TOKENS", justify="right")),
    (0, _column("RESTORED", justify="right")),
    (110, _column("FIRST TOKEN", justify="right")),
    (60, _column("TOTAL", justify="right")),
    (0, _column("REASON", max_width=24)),
    # It takes the remaining width.
    (140, _column("WHY", ratio=1)),
)


def show(find: Callable[[], Sequence[Client]], seconds: float) -> None:
    """Show the screen, with a look every so many seconds, until q, Ctrl-C or SIGTERM; the terminal
    is left as it was. Without a terminal print one picture, as long as there is to say."""
    console = Console(color_system="auto" if uses_styles(sys.stdout) else None, highlight=False)
    screen, lookout = Screen(console), Lookout(find)
    is_screen = is_interactive(sys.stdout) and sys.stdin.isatty()
    # So that the first picture has figures, if they come soon.
    screen.take(lookout.look(_FIRST_SECONDS if is_screen else ANSWER_SECONDS + 1))
    if not is_screen:
        console.print(screen.picture(None))
        return
    due = time.monotonic() + seconds
    with (
        sigterm_raises(),
        suppress(KeyboardInterrupt),
        _keys_at_once(),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not screen.is_done:
            live.update(screen.picture(console.height), refresh=True)
            screen.press(_keys(min(_DRAW_SECONDS, seconds)))
            if time.monotonic() >= due:
                due = time.monotonic() + seconds
                screen.take(lookout.look(_DRAW_SECONDS), lookout.gone)


@contextmanager
def _keys_at_once() -> Iterator[None]:
    modes = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


def _keys(seconds: float) -> str:
    """Return the keys that were pressed within so many seconds; q for a terminal that has gone."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 64).decode(errors="replace") or "q"


class Screen:
    """A person's choices, and the picture of the stores' last replies. One thread."""

    def __init__(self, console: Console) -> None:
        self.is_done = self._is_paused = False
        self._console = console
        self._chosen: str | None = None
        self._at, self._replies, self._gone = 0.0, list[StoreReply](), list[str]()

    def take(self, replies: list[StoreReply], gone: Iterable[tuple[float, str]] = ()) -> None:
        if not self._is_paused:
            self._at, self._replies, self._gone = time.time(), replies, [said for _, said in gone]

    def press(self, keys: str) -> None:
        for key in keys:
            if key in "qQ":
                self.is_done = True
            elif key in "p ":
                self._is_paused = not self._is_paused
            elif key == "0":
                self._chosen = None
            elif key.isdecimal() and int(key) <= len(self._replies):
                self._chosen = str(self._replies[int(key) - 1].store.path)

    def picture(self, height: int | None) -> RenderableType:
        """Return the picture for so many lines; without a height as long as there is to say."""
        width = self._console.width
        ink = _BLOCKS if self._console.encoding.startswith("utf") else _ASCII
        here = [r for r in self._replies if str(r.store.path) == self._chosen] or self._replies
        known = [reply.answer for reply in here if reply.answer is not None]
        lines = [*self._heads(here), *_figures(known, width, ink)]
        lines += [_words("", (said, "bold red")) for said in _troubles(here)]
        lines += [_words("", (said, "dim")) for said in self._gone]
        told = sorted(
            (one for each in known for one in each.requests),
            key=attrgetter("asked_at"),
            reverse=True,
        )
        left = 24 if height is None else max(0, height - len(lines) - 1)
        tall = min(_HIGHEST_GRAPH, max(1, (left - 6) // 4))
        busy = busiest(told, self._at)[: min(_MOST_BUSY, max(1, left // 3))]
        shown = told[: max(0, left - tall - len(busy) - 3)]
        body = Group(
            *lines,
            *_graph(series(told, self._at, min(width, STEPS)), tall, ink),
            _table(_BUSY, map(_busy_cells, busy), width),
            _table(_REQUESTS, map(_request_cells, shown), width),
        )
        if height is None:
            return body
        layout = Layout()
        footer = _words("PAUSED" if self._is_paused else "", (_KEYS, "dim"))
        layout.split_column(Layout(body), Layout(footer, size=1))
        return layout

    def _heads(self, here: Sequence[StoreReply]) -> Iterator[Text]:
        what = f"{len(here)} stores" if here else "no store is running; waiting for one"
        if len(here) == 1:
            answer = here[0].answer
            what = f"{name_of(here[0])}, process {here[0].store.pid}"
            what += f", up {duration(answer.known.stats.uptime_seconds)}" if answer else ""
        title = Text(f" omlx-cache ps  {_clock(self._at)}  {what}", "reverse", no_wrap=True)
        title.truncate(self._console.width, pad=True)
        yield title
        if len(self._replies) > 1:
            names = [f"{n} {name_of(reply)}" for n, reply in enumerate(self._replies[:9], 1)]
            yield _words("0 all", ("  ".join(names), ""))


def _figures(known: Sequence[Watched], width: int, ink: str) -> Iterator[Text]:
    """Yield the tiers' share of their budgets, and the requests' tokens: lately, and since the
    stores' start."""
    if not known:
        return
    stats = total([one.known[1:] for one in known])
    now: Rates = reduce(added_up, (one.rates for one in known), {})
    cold, writer, remote, requests = stats.cold, stats.writer, stats.remote, stats.requests
    level, evicted = stats.memory.level, now.get("evicted_pages_per_second")
    yield _words(
        "memory",
        _held(stats.hot.nbytes, stats.hot.limit_bytes, width, ink),
        (f"{stats.hot.pages:,} pages", ""),
        (f"memory {text(level)}" if level != "normal" else "", "bold red"),
        (f"{rate(evicted)} evicted/s" if evicted else "", ""),
    )
    if cold is not None:
        yield _words(
            "disk",
            _held(cold.nbytes, cold.limit_bytes, width, ink),
            (f"{cold.pages:,} pages", ""),
            _state(cold.room if cold.state == "ok" else cold.state),
        )
    if writer is not None:
        losses = [*_losses(writer, "failed", "dropped", "refused"), *_losses(cold, "corrupt")]
        yield _words(
            "writer",
            _held(writer.pending_bytes, writer.limit_bytes, width, ink),
            (f"{quantity('bytes', now.get('written_bytes_per_second'))}/s", ""),
            *(losses or [("0 dropped", "")]),
        )
    if remote is not None:
        latency = remote.latency_seconds
        yield _words(
            "remote",
            _state(remote.state),
            (f"{quantity('bytes', now.get('remote_read_bytes_per_second'))}/s read", ""),
            (f"{quantity('bytes', now.get('remote_written_bytes_per_second'))}/s written", ""),
            *_losses(remote, "dropped", "bad"),
            (f"{1000 * latency:.1f} ms away" if latency else "", ""),
            (text(remote.where), ""),
        )
    yield _words(
        "tokens/s",
        (f"{rate(now.get('prompt_tokens_per_second'))} asked", ""),
        (f"{rate(now.get('restored_tokens_per_second'))} restored", "green"),
        (f"{rate(now.get('requests_per_second'))} requests/s", ""),
        (f"{requests.live_sessions} live", ""),
        (f"{rate(now.get('computed_tokens_per_second'))} computed", ""),
    )
    yield _words(
        "total",
        (f"{requests.asked_tokens:,} asked", ""),
        (f"{requests.restored_tokens:,} restored ({requests.hit_ratio:.0%})", "green"),
        (time_saved(requests), ""),
        (f"{requests.sessions:,} requests", ""),
    )


def _held(nbytes: int, limit_bytes: int, width: int, ink: str) -> Part:
    """Return a bar and how much that is of how much; anything at all is one cell at least."""
    room = min(_WIDEST_BAR, max(_NARROWEST_BAR, width - _BESIDE_BAR))
    share = min(1.0, nbytes / limit_bytes) if limit_bytes else 0.0
    cells = max(int(share * room), 1 if share else 0)
    amounts = f"{format_size(nbytes)} / {format_size(limit_bytes)}"
    return f"{ink[-1] * cells}{ink[1] * (room - cells)} {amounts}", "cyan"


def _state(state: str) -> Part:
    return text(state).partition(":")[0], "" if state == "ok" else "bold red"


def _losses(usage: object, *names: str) -> Iterator[Part]:
    for name in names:
        if count := getattr(usage, f"{name}_pages", 0):
            yield f"{count:,} {name}", "red"


def _troubles(here: Sequence[StoreReply]) -> Iterator[str]:
    for reply in here:
        stats, pid = reply.answer and reply.answer.known.stats, reply.store.pid
        if reply.error is not None:
            yield f"process {pid}: {text(reply.error)}"
        elif stats.cold is not None and stats.cold.state != "ok":
            yield f"process {pid}: disk {text(stats.cold.state)}"
        elif stats.remote is not None and stats.remote.state != "ok":
            yield f"process {pid}: the remote store is {text(stats.remote.state)}"


def _words(name: str, *parts: Part) -> Text:
    line = Text(f" {name:<8} ", "bold", no_wrap=True, overflow="ellipsis")
    for at, part in enumerate(part for part in parts if part[0]):
        line.append(", " if at else "", "not bold")
        line.append(part[0], f"not bold {part[1]}")
    return line


def _graph(values: Sequence[int], height: int, ink: str) -> Iterator[Text]:
    """A column for each value; the highest fills all."""
    peak, steps = max(values), len(ink) - 1
    span = f"last {len(values) * STEP_SECONDS / 60:.0f} min"
    yield Text(f" HIT TOKENS, {span}, peak {rate(peak / STEP_SECONDS)}/s", "bold", no_wrap=True)
    for row in reversed(range(height)):
        line = ""
        for value in values:
            part = round(value / peak * height * steps) - row * steps if peak else 0
            line += ink[min(steps, max(part, 1 if value and not row else 0))]
        yield Text(line, "green", no_wrap=True)


def _table(columns: Columns, rows: Iterable[Sequence[object]], width: int) -> Table:
    kept = [at for at, (from_width, _) in enumerate(columns) if width >= from_width]
    shown = [columns[at][1].copy() for at in kept]
    is_wide = any(column.ratio for column in shown)
    table = Table(*shown, box=None, padding=(0, 1), pad_edge=True, expand=is_wide)
    for row in rows:
        table.add_row(*(Text(text(row[at])) for at in kept))
    return table


def _busy_cells(requests: Sequence[ExplainedRequest]) -> Sequence[object]:
    latest = requests[0]
    asked, restored = (
        sum(getattr(one, f"{what}_tokens") for one in requests) for what in ("prompt", "restored")
    )
    return (
        last_name(latest.model) or latest.namespace[:16],
        latest.salt.rpartition(":")[2][:8] or None,
        f"{restored:,}",
        f"{asked:,}",
        f"{restored / max(1, asked):.1%}",
        len(requests),
        latest.namespace[:12],
        _clock(latest.asked_at),
    )


def _request_cells(told: ExplainedRequest) -> Sequence[object]:
    unknown = "..." if told.total_seconds is None else None
    return (
        _clock(told.asked_at),
        told.pid,
        told.number,
        last_name(told.model) or None,
        f"{told.prompt_tokens:,}",
        f"{told.restored_tokens:,}",
        *(
            unknown if seconds is None else f"{seconds:.2f} s"
            for seconds in (told.first_token_seconds, told.total_seconds)
        ),
        # None is a hit: nothing was left to restore.
        (told.reason or "-").replace("_", " "),
        told.why or None,
    )


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
