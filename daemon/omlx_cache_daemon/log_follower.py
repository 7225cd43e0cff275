"""The logs of a store, read so that each row is seen once: requests, and what happened to pages."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

from omlx_cache.control.replies import RecordPage
from omlx_cache.requests.explanation import RequestRecord
from omlx_cache_daemon.client import Map, as_answer, as_map, as_maps, count_of
from omlx_cache_daemon.render import quantity

AT_A_TIME = 1000
_MODEL_CHARACTERS, _SALT_DIGITS, _NAMESPACE_DIGITS, _KEY_DIGITS = 24, 8, 8, 12


class Row(NamedTuple):
    """One line of a log: when, in seconds since the epoch, as JSON, and a cell for each column.
    Without cells it says how many lines were `missed`: forgotten before they were asked for."""

    at: float
    document: Map
    cells: Sequence[object] = ()


class Follower:
    """Reads one store's log. Mutable: `_arguments` of the next question, `_after` (the number up to
    which all is known, None before the first answer), and `_began`, which tells the log from
    another store's in its place."""

    operation = ""
    columns: Sequence[tuple[str, int]] = ()
    spare: Sequence[str] = ()
    """Columns that a narrow terminal does without, the first to go first."""

    def __init__(self, **first: object) -> None:
        """`first` are the arguments of the first question; with `after` among them its answer is
        asked for to its end."""
        self._arguments = first
        self._after: int | None = None
        self._began: object = None

    def news(self, ask: Callable[..., object], pid: int | None) -> Iterator[Row]:
        """Yield the news since the last time, in the order of the store: `ask` calls its
        operations, and `pid` is its process. One that ends meanwhile takes nothing back."""
        while True:
            before, is_whole = self._after, "after" not in self._arguments
            reply = as_map(ask(self.operation, **self._arguments))
            upto, began = count_of(reply, "upto"), self._began
            self._began = reply.get("began")
            if before is not None and (upto < before or began != self._began):
                # Another store has taken the place of the one before: its numbers begin again.
                upto = 0
            else:
                yield from self._rows(reply, before, pid)
            self._after = upto
            self._arguments |= {"after": upto, "limit": AT_A_TIME}
            if is_whole or before == upto:
                return

    def _rows(self, reply: Map, after: int | None, pid: int | None) -> list[Row]:
        raise NotImplementedError


class Requests(Follower):
    """Each request once, when it ends; running ones too, if `shows_begun`. Mutable: `_open`, the
    numbers of the requests that had not ended."""

    operation = "requests"
    columns = (
        ("ENDED", 8),
        ("PID", 7),
        ("NUMBER", 6),
        ("MODEL", -_MODEL_CHARACTERS),
        ("SALT", -_SALT_DIGITS),
        ("TOKENS", 7),
        ("RESTORED", 8),
        ("HOT", 7),
        ("COLD", 7),
        ("REMOTE", 7),
        ("COMPUTED", 8),
        ("OUT", 6),
        ("RESTORE", 9),
        ("HELD", 9),
        ("COMPUTE", 9),
        ("FIRST", 9),
        ("TOTAL", 9),
        ("REASON", -8),
    )
    spare = ("SALT", "HELD", "REMOTE", "OUT", "MODEL", "COMPUTE", "RESTORE", "HOT", "COLD", "TOTAL")

    def __init__(self, *, shows_begun: bool) -> None:
        super().__init__(after=0, limit=AT_A_TIME)
        self._shows_begun = shows_begun
        self._open: set[int] = set()

    def _rows(self, reply: Map, after: int | None, pid: int | None) -> list[Row]:
        page = as_answer(RecordPage, reply)
        new = [record for record in page.records if record.number > (after or 0)]
        forgotten = self._open - {record.number for record in page.records}
        skipped = 0 if after is None else page.upto - after - len(new)
        self._open = {r.number for r in page.records if r.total_seconds is None}
        self._arguments["open"] = sorted(self._open)
        begun = new if self._shows_begun else []
        shown = [r for r in page.records if r.total_seconds is not None or r in begun]
        return [*_missed(pid, len(forgotten) + max(0, skipped)), *(_request(pid, r) for r in shown)]


class Events(Follower):
    """Events of pages."""

    operation = "events"
    columns = (
        ("TIME", 12),
        ("PID", 7),
        ("EVENT", -9),
        ("TIER", -4),
        ("NAMESPACE", -9),
        ("KEY", -_KEY_DIGITS),
        ("GROUP", -8),
        ("POSITION", 8),
        ("TOKENS", 7),
        ("BYTES", 10),
        ("DETAIL", -20),
    )
    spare = ("NAMESPACE", "PID", "GROUP", "TOKENS", "BYTES")

    def _rows(self, reply: Map, after: int | None, pid: int | None) -> list[Row]:
        pid = count_of(reply, "pid")
        told = [{"pid": pid, **one} for one in as_maps(reply.get("events", []))]
        batches = [{"pid": pid, **one} for one in as_maps(reply.get("batches", []))]
        rows = [Row(_number(one.get("ts")), one, ("batch",)) for one in batches]
        return [*_missed(pid, count_of(reply, "dropped")), *map(_event, told), *rows]


def _missed(pid: int | None, count: int) -> list[Row]:
    return [Row(0.0, {"pid": pid, "missed": count})] if count else []


def _request(pid: int | None, record: RequestRecord) -> Row:
    asked_at, took = record.asked_at, record.total_seconds
    restored, cold, remote = record.restored_tokens, record.cold_tokens, record.remote_tokens
    computed = record.computed_tokens
    if not computed and took is not None and record.generated_tokens:
        # A server that timed no tokens reported none: they are the remaining ones.
        computed = record.prompt_tokens - restored
    counts = (record.prompt_tokens, restored, restored - cold - remote, cold, remote, computed)
    times = (
        *(record.restore_seconds, record.held_seconds, record.compute_seconds),
        *(record.first_token_seconds, took),
    )
    cells = [
        None if took is None else time.strftime("%H:%M:%S", time.localtime(asked_at + took)),
        pid,
        record.number,
        (record.model or "-").rpartition("/")[2][:_MODEL_CHARACTERS],
        (record.salt or "-").rpartition(":")[2][:_SALT_DIGITS],
        *(f"{count:,}" for count in (*counts, record.generated_tokens)),
        *(None if seconds is None else f"{seconds:.3f} s" for seconds in times),
        record.reason,
    ]
    return Row(asked_at + (took or 0.0), {"pid": pid, **asdict(record)}, cells)


def _event(event: Map) -> Row:
    at, nbytes = _number(event.get("at")), event.get("nbytes")
    cells = [
        time.strftime("%H:%M:%S", time.localtime(at)) + f"{at % 1:.3f}"[1:],
        event.get("pid"),
        event.get("kind"),
        event.get("tier") or None,
        str(event.get("namespace") or "-")[:_NAMESPACE_DIGITS],
        str(event.get("key") or "-")[:_KEY_DIGITS],
        event.get("group") or None,
        event.get("position") or None,
        event.get("tokens") or None,
        quantity("bytes", nbytes) if nbytes else None,
        event.get("detail") or None,
    ]
    return Row(at, event, cells)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
