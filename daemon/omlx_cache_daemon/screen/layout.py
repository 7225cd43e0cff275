"""The screen as lines of text: a pure function of the figures and of the terminal's size."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from omlx_cache.requests.explanation import RequestRecord
from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.render import duration, text
from omlx_cache_daemon.screen.afar import Afar
from omlx_cache_daemon.screen.cells import Ink, bar, cell_width, columns, fitted
from omlx_cache_daemon.screen.lately import LATELY_SECONDS, STEP_SECONDS, Busy
from omlx_cache_daemon.screen.view import Tier, View


class Span(NamedTuple):
    """A piece of a line; `style` is empty or title, head, dim, full, good, warn or bad."""

    text: str
    style: str = ""


Line = list[Span]
Row = TypeVar("Row")

_ALMOST_FULL = 0.9
_NAME_CELLS = 8
_NARROWEST_BAR, _WIDEST_BAR, _BESIDE_BAR = 8, 60, 62
_HIGHEST_GRAPH = 6
_MOST_GROWTH = 24


class Column(NamedTuple):
    """A column of a table: narrow terminals leave out the one whose `leaves` is the highest, wide
    ones give the room that is left to the one that `grows`."""

    header: str
    width: int
    right: bool
    leaves: int
    grows: bool = False


def laid_out(view: View, width: int, height: int | None, ink: Ink, footer: str = "") -> list[Line]:
    """Return the lines of a screen of this size; with no height as many as there is to say."""
    top = [_title(view, width), *_choice(view, width), *_tiers(view, width, ink)]
    top += [_now(view, width), _since(view, width)]
    top += [[Span(f" {text(note)}", "bad")] for note in view.notes]
    left = None if height is None else height - len(top) - (1 if footer else 0)
    lines = top + _rest(view, width, left, ink)
    if height is not None:
        lines = lines[: height - (1 if footer else 0)]
        lines += [[] for _ in range(height - (1 if footer else 0) - len(lines))]
    if footer:
        lines.append([Span(fitted(f" {footer}", width), "dim")])
    return [_cut(line, width) for line in lines]


def _title(view: View, width: int) -> Line:
    clock = time.strftime("%H:%M:%S", time.localtime(view.at))
    one = view.chosen or (view.processes[0] if len(view.processes) == 1 else None)
    if one is None:
        what = f"{len(view.processes)} stores" if view.processes else "no store"
    else:
        known = "" if one.stats is None else f", up {duration(one.stats.uptime_seconds)}"
        what = f"{one.title}, process {one.pid}{known}"
    return [Span(fitted(f" omlx-cache top  {clock}  {what}", width), "title")]


def _choice(view: View, width: int) -> list[Line]:
    """Return the line of the stores that can be chosen; none where there is one."""
    if len(view.processes) < 2:
        return []
    line = [Span(" "), Span("0 all", "" if view.chosen else "head")]
    for number, process in enumerate(view.processes[:9], 1):
        style = "head" if process is view.chosen else ("bad" if process.error else "")
        line += [Span("  "), Span(f"{number} {text(process.title)}", style)]
    return [_cut(line, width)]


def _tiers(view: View, width: int, ink: Ink) -> list[Line]:
    evicted = view.rates["evicted_pages_per_second"]
    in_memory = [Span(f"{view.hot.pages:,} pages")]
    if view.memory_level:
        in_memory.append(Span(f"memory {text(view.memory_level)}", "bad"))
    if evicted:
        in_memory.append(Span(f"{_rate(evicted)} evicted/s"))
    lines = [_tier("memory", view.hot, in_memory, width, ink)]
    if view.cold is None:
        no_disk: Line = [Span(f" {'disk':<{_NAME_CELLS}} "), Span("none", "dim")]
        return [*lines, no_disk, *_afar(view.afar, width)]
    state = Span(text(view.cold.state).partition(":")[0], "bad") if view.cold.state else Span("ok")
    on_disk = [Span(f"{view.cold.pages:,} pages"), state]
    lines += [
        _tier("disk", view.cold, on_disk, width, ink),
        _tier("writer", view.queue, _writer(view), width, ink),
        *_afar(view.afar, width),
    ]
    return lines


def _afar(afar: Afar | None, width: int) -> list[Line]:
    """Return the line of the store that machines share; none without one."""
    if afar is None:
        return []
    state = Span("ok") if afar.state == "ok" else Span(text(afar.state).partition(":")[0], "bad")
    trip = afar.latency_seconds
    losses = (("dropped", afar.dropped_pages), ("bad", afar.bad_pages))
    return [
        _said(
            "remote",
            width,
            state,
            Span(f"{_bytes_rate(afar.read_bytes_per_second)} read"),
            Span(f"{_bytes_rate(afar.written_bytes_per_second)} written"),
            *(Span(f"{count:,} {name}", "bad") for name, count in losses if count),
            *([] if trip is None else [Span(f"{1000 * trip:.1f} ms away")]),
            Span(text(afar.where)),
        )
    ]


def _bytes_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{format_size(round(rate))}/s"


def _writer(view: View) -> list[Span]:
    """Return the rate, and each kind of page that did not come to the disk."""
    written = view.rates["written_bytes_per_second"]
    losses = [
        Span(f"{int(view.sums[f'{name}_pages']):,} {name}", "bad" if name != "refused" else "warn")
        for name in ("failed", "corrupt", "dropped", "refused")
        if view.sums[f"{name}_pages"]
    ]
    rate = "-" if written is None else format_size(round(written))
    return [Span(f"{rate}/s"), *(losses or [Span("0 dropped")])]


def _tier(name: str, tier: Tier, says: Sequence[Span], width: int, ink: Ink) -> Line:
    cells = min(_WIDEST_BAR, max(_NARROWEST_BAR, width - _BESIDE_BAR))
    part = tier.nbytes / tier.limit_bytes if tier.limit_bytes else 0.0
    amounts = f"{format_size(tier.nbytes)} / {format_size(tier.limit_bytes)}"
    begun = [
        Span(f" {name:<{_NAME_CELLS}} "),
        Span(
            bar(tier.nbytes, tier.limit_bytes, cells, ink),
            "warn" if name == "writer" and part >= _ALMOST_FULL else "full",
        ),
        Span(f" {amounts:<19} "),
    ]
    return _filled(begun, says, width)


def _now(view: View, width: int) -> Line:
    rates = view.rates
    asked, restored = rates["prompt_tokens_per_second"], rates["restored_tokens_per_second"]
    return _said(
        "tokens/s",
        width,
        Span(f"{_rate(asked)} asked"),
        Span(f"{_rate(restored)} restored ({_hit(restored, asked)})", "good" if restored else ""),
        Span(f"{_rate(rates['requests_per_second'])} requests/s"),
        Span(f"{int(view.sums['live'])} live"),
        Span(f"{_rate(rates['computed_tokens_per_second'])} computed"),
    )


def _since(view: View, width: int) -> Line:
    sums = view.sums
    asked, restored = sums["asked_tokens"], sums["restored_tokens"]
    return _said(
        "total",
        width,
        Span(f"{_amount(asked)} asked"),
        Span(f"{_amount(restored)} restored ({_hit(restored, asked)})", "good" if restored else ""),
        Span(f"about {duration(max(0.0, sums['saved_seconds']))} saved"),
        Span(f"{_amount(sums['requests'])} requests"),
    )


def _said(name: str, width: int, *parts: Span) -> Line:
    """Return a line of the parts that fit it whole, the first ones first."""
    return _filled([Span(f" {name:<{_NAME_CELLS}} ", "head")], parts, width)


def _filled(begun: Line, parts: Sequence[Span], width: int) -> Line:
    """Return a line with those of the parts behind it that fit whole, commas between them."""
    line = list(begun)
    for part in parts:
        comma = [] if len(line) == len(begun) else [Span(", ")]
        if sum(cell_width(span.text) for span in [*line, *comma, part]) <= width:
            line += [*comma, part]
    return line


def _hit(restored: float | None, asked: float | None) -> str:
    return f"{100 * restored / asked:.0f} %" if asked and restored is not None else "-"


def _rest(view: View, width: int, left: int | None, ink: Ink) -> list[Line]:
    """Return the graph and the tables, of the heights that there is room for."""
    room = 24 if left is None else max(0, left)
    graph = min(_HIGHEST_GRAPH, max(1, (room - 6) // 4))
    lines = _graph(view, width, graph, ink)
    room -= len(lines)
    busy = len(view.busy) if left is None else min(len(view.busy), max(1, (room - 2) // 3))
    lines += _table(_BUSY, view.busy[: min(busy, 12)], _busy_cells, width, _NOTHING_ASKED)
    room = 12 if left is None else max(0, left) - len(lines)
    shown = view.requests[: max(0, room - 1)]
    several = len(view.processes) > 1
    columns_shown = _REQUESTS if several and view.chosen is None else _REQUESTS[1:]
    cells = _request_cells if several and view.chosen is None else _own_request_cells
    return lines + _table(columns_shown, shown, cells, width, "no request yet")


def _graph(view: View, width: int, height: int, ink: Ink) -> list[Line]:
    values = view.restored[-max(1, width - 2) :]
    peak = max(values) / STEP_SECONDS
    minutes = len(values) * STEP_SECONDS / 60
    title = f" HIT TOKENS, last {minutes:.0f} min, peak {_rate(peak)}/s"
    drawn = [[Span(f" {line}", "good")] for line in columns(values, height, ink)]
    return [[Span(fitted(title, width), "head")], *drawn]


_NOTHING_ASKED = f"nothing was asked in the last {LATELY_SECONDS / 60:.0f} min"
_BUSY = (
    Column("BUSIEST", 20, False, 0, grows=True),
    Column("SALT", 8, False, 3),
    Column("RESTORED", 10, True, 0),
    Column("ASKED", 10, True, 1),
    Column("HIT%", 5, True, 0),
    Column("REQUESTS", 8, True, 2),
    Column("NAMESPACE", 12, False, 4),
    Column("LAST", 8, False, 3),
)
_REQUESTS = (
    Column("PID", 7, True, 2),
    Column("TIME", 8, False, 0),
    Column("NUMBER", 6, True, 1),
    Column("MODEL", 14, False, 3, grows=True),
    Column("TOKENS", 8, True, 0),
    Column("RESTORED", 8, True, 0),
    Column("TOTAL", 8, True, 4),
    Column("REASON", 14, False, 0),
)


def _busy_cells(busy: Busy) -> list[object]:
    return [
        _short(busy.model) or busy.namespace[:16],
        busy.salt.rpartition(":")[2][:8] or "-",
        f"{busy.restored_tokens:,}",
        f"{busy.asked_tokens:,}",
        f"{100 * busy.hit_ratio:.1f}",
        busy.requests,
        busy.namespace[:12],
        _clock(busy.last_at),
    ]


def _request_cells(pair: tuple[int | None, RequestRecord]) -> list[object]:
    return [pair[0], *_own_request_cells(pair)]


def _own_request_cells(pair: tuple[int | None, RequestRecord]) -> list[object]:
    record = pair[1]
    return [
        _clock(record.asked_at),
        record.number,
        _short(record.model or "-"),
        f"{record.prompt_tokens:,}",
        f"{record.restored_tokens:,}",
        "..." if record.total_seconds is None else f"{record.total_seconds:.2f} s",
        # None is a hit: nothing was left to restore.
        (record.reason or "-").replace("_", " "),
    ]


class _Fitting(NamedTuple):
    """The columns that fit a width, and their places among all."""

    columns: Sequence[Column]
    at: Sequence[int]


def _fitting(all_columns: Sequence[Column], width: int) -> _Fitting:
    kept = list(range(len(all_columns)))
    while sum(all_columns[i].width + 2 for i in kept) > width and len(kept) > 1:
        # The last of those that leave first.
        kept.remove(max(kept, key=lambda i: (all_columns[i].leaves, i)))
    room = width - sum(all_columns[i].width + 2 for i in kept)
    fitting = [all_columns[i] for i in kept]
    return _Fitting(
        [c._replace(width=c.width + min(room, _MOST_GROWTH)) if c.grows else c for c in fitting],
        kept,
    )


def _table(
    all_columns: Sequence[Column],
    rows: Sequence[Row],
    cells: Callable[[Row], list[object]],
    width: int,
    empty: str,
) -> list[Line]:
    chosen = _fitting(all_columns, width)
    header = "  ".join(fitted(c.header, c.width, right=c.right) for c in chosen.columns)
    lines: list[Line] = [[Span(fitted(f" {header}", width), "head")]]
    for row in rows:
        values = cells(row)
        shown = (
            fitted(values[i], c.width, right=c.right)
            for i, c in zip(chosen.at, chosen.columns, strict=True)
        )
        lines.append([Span(" " + "  ".join(shown))])
    return lines if rows else [*lines, [Span(f" {empty}", "dim")]]


def _cut(line: Line, width: int) -> Line:
    """Return a line that is no wider than the screen; one cell too much would begin another."""
    shown, left = [], width
    for span in line:
        if left <= 0:
            break
        piece = span.text if cell_width(span.text) <= left else fitted(span.text, left)
        shown.append(Span(piece, span.style))
        left -= cell_width(piece)
    return shown


def _short(label: str) -> str:
    return label.rstrip("/").rpartition("/")[2]


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _amount(count: float) -> str:
    """Return a count in a few characters: 12,345, 1.2 M, 3.4 G."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if count >= 10 * size or (unit == "G" and count >= size):
            return f"{count / size:.1f} {unit}"
    return f"{int(count):,}"
