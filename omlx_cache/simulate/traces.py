"""Reads traces: sessions of agents, requests of a chat service, and this cache's own. Their
requests become a workload of numbered pages."""

import base64
import gzip
import heapq
import json
import random
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mode
from typing import Any, NamedTuple

from omlx_cache.requests.trace import BLOCK_BYTES, FORMAT, VERSION
from omlx_cache_storage.errors import CacheError

CHAT_BLOCK = 512
"""Tokens of a block of the chat format, which does not say so."""
DEFAULT_BLOCK_SIZE = 256
PAUSE_SECONDS = 60.0
"""How long a place stays free between two sessions."""
MAX_BLOCKS = 10_000_000
"""More than a prompt of any model has: a run that claims more is a mistake."""
FORMATS = "a JSON object a line: a session, a chat request, or what `serve --trace` writes"
MAX_LINE_BYTES = 256 << 20
"""More than any request takes: a small packed file may unpack to a line of a terabyte."""
MAX_SECONDS = 1e10
"""Some centuries, times since the epoch included: stamps are in nanoseconds."""
NUMBER_BITS = 8 * BLOCK_BYTES
"""Of a block's number within what names it: a file, a session, or a part of this cache's own."""


class SimulationError(CacheError, ValueError):
    """A simulation is impossible, or a trace cannot be read."""


class Request(NamedTuple):
    """`pages` are the complete ones of a sequence, root first; the first `asked` are the prompt's.
    `ended` and `session` are empty where they are not known."""

    at: float
    pages: list[int]
    asked: int
    tokens_in: int
    ended: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their times, of pages numbered from 0. `bytes_per_token` is the
    trace's figure for its model, 0 without one."""

    requests: list[Request]
    pages: int
    block_size: int
    bytes_per_token: int = 0

    @property
    def tokens_in(self) -> int:
        return sum(request.tokens_in for request in self.requests)

    @property
    def references(self) -> int:
        return sum(request.asked for request in self.requests)

    @property
    def seconds(self) -> float:
        return self.requests[-1].at - self.requests[0].at if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Traced:
    """A request as a trace has it, of a sequence of `tokens`. Equal blocks have equal numbers. With
    a `session`, `at` counts from that one's beginning."""

    at: float
    tokens_in: int
    block_tokens: int
    blocks: "array[int]"
    tokens: int
    bytes_per_token: int = 0
    ended: str = ""
    session: str = ""


Numbers = dict[Hashable, int]
"""Names of blocks or pages, numbered as they come."""


def workload(
    traced: Sequence[Traced], *, agents: int, block_size: int | None = None, shuffle: str = ""
) -> Workload:
    """Return requests in the order of their times; raises SimulationError for a size of pages that
    does not fit. Sessions run `agents` at a time, in their order or in that of a named seed."""
    sizes = {request.block_tokens for request in traced}
    if has_sessions(traced):
        traced = _scheduled(traced, agents, shuffle)
    elif sizes != {CHAT_BLOCK}:
        block_size = block_size or max(sizes)
    size = block_size or DEFAULT_BLOCK_SIZE
    traced = sorted(traced, key=lambda request: request.at)
    numbers: Numbers = {}
    requests = []
    for one in traced:
        pages = _pages(one, size, numbers)
        asked = len(pages) if one.session else min(len(pages), one.tokens_in // size)
        at = one.at - traced[0].at
        requests.append(Request(at, pages, asked, one.tokens_in, one.ended, one.session))
    said = [one.bytes_per_token for one in traced if one.bytes_per_token]
    return Workload(requests, len(numbers), size, mode(said or [0]))


def has_sessions(traced: Sequence[Traced]) -> bool:
    return any(request.session for request in traced)


def _scheduled(traced: Sequence[Traced], agents: int, shuffle: str) -> list[Traced]:
    """Begin each session when a place is free; it follows its own times from there."""
    sessions: dict[str, list[Traced]] = {}
    for request in traced:
        sessions.setdefault(request.session, []).append(request)
    ordered = list(sessions.values())
    if shuffle:
        random.Random(shuffle).shuffle(ordered)
    free = [0.0] * agents
    found = []
    for session in ordered:
        start = heapq.heappop(free)
        found += [replace(request, at=start + request.at) for request in session]
        heapq.heappush(free, start + max(request.at for request in session) + PAUSE_SECONDS)
    return found


def _pages(request: Traced, size: int, numbers: Numbers) -> list[int]:
    """Return the complete pages of a sequence, each named by what precedes it and by its blocks,
    or its part of one."""
    block = request.block_tokens
    if size % block and block % size:
        raise SimulationError(
            f"pages of {size} tokens and blocks of {block} do not fit each other: give a multiple "
            f"or a divisor of {block} as --block-size"
        )
    joined, split = max(1, size // block), max(1, block // size)
    pages: list[int] = []
    parent = -1
    for page in range(min(request.tokens // size, len(request.blocks) * split // joined)):
        first = page * joined // split
        what = parent, request.blocks[first : first + joined].tobytes(), page % split
        parent = numbers.setdefault(what, len(numbers))
        pages.append(parent)
    return pages


def read_traces(paths: Sequence[Path]) -> list[Traced]:
    """Return the requests of some files; raises SimulationError, naming file and line."""
    numbers: Numbers = {}
    files = [_read(path, numbers) for path in paths]
    if len({has_sessions(found) for found in files}) > 1:
        raise SimulationError("the files are of two kinds, sessions and requests: give one kind")
    return [request for found in files for request in found]


def _read(path: Path, numbers: Numbers) -> list[Traced]:
    requests: list[Traced] = []
    stored: list[array[int]] = []
    for number, line in _lines(path):
        try:
            document = json.loads(line)
            read = next((read for name, read in _READERS.items() if name in document), None)
            if read is None:
                raise ValueError(f"expected {FORMATS}")
            requests += read(document, str(path), numbers)
            if "stored" in document:
                stored.append(_named(document, "stored", numbers))
        except json.JSONDecodeError as error:
            what = f"expected {FORMATS}, this is no JSON: {error}"
            raise SimulationError(f"{path}, line {number}: {what}") from None
        except KeyError as error:
            raise SimulationError(f"{path}, line {number}: it has no {error}") from None
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise SimulationError(f"{path}, line {number}: {error}") from None
    if not requests:
        raise SimulationError(f"{path}: no request is in it")
    return _answered(requests, stored)


def _answered(requests: list[Traced], stored: "Sequence[array[int]]") -> list[Traced]:
    """Add the blocks of answers to their requests, where the trace tells these apart."""
    waiting: dict[int, deque[int]] = {}
    for at, request in enumerate(requests):
        if request.blocks:
            waiting.setdefault(request.blocks[-1], deque()).append(at)
    for blocks in stored:
        last = next((block for block in reversed(blocks) if waiting.get(block)), None)
        # Prompts are stored by themselves first: those say nothing of an answer.
        if last is not None and last != blocks[-1]:
            at = waiting[last].popleft()
            tokens = requests[at].block_tokens * len(blocks)
            requests[at] = replace(requests[at], blocks=blocks, tokens=tokens)
    return requests


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open("rb") as raw:
            # Looked at, not read: a pipe gives its bytes once.
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            lines = gzip.GzipFile(fileobj=raw) if packed else raw
            for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), 1):
                if len(line) == MAX_LINE_BYTES:
                    raise SimulationError(f"{path}, line {number}: it is longer than any request")
                if not line.isspace():
                    yield number, line.decode("utf-8")
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise SimulationError(f"{path}, after line {number}: {error}") from None
    except OSError as error:
        raise SimulationError(f"{path}: {error.strerror or error}") from None


def _session(line: Mapping[str, Any], _file: str, numbers: Numbers) -> Iterator[Traced]:
    """Runs are block numbers: first, count, first, count... Sessions with equal tokens of tools and
    of the system prompt share that many leading ones."""
    name, size = str(line["id"]), _number(line["block_tokens"], "block_tokens", 1)
    common = tuple(_number(line[of], of) for of in ("tool_tokens", "system_tokens"))
    own, shared = _base(name, numbers), _base(common, numbers)
    for request in line["requests"]:
        runs = [_number(one, "runs") for one in request["runs"]]
        if len(runs) % 2 or sum(runs[1::2]) > MAX_BLOCKS:
            raise ValueError("runs are not pairs of a first block and a count")
        blocks = array("Q")
        for first, count in zip(runs[::2], runs[1::2], strict=True):
            blocks.extend(range(own + first, own + first + count))
        both = min(sum(common) // size, len(blocks))
        blocks[:both] = array("Q", range(shared, shared + both))
        yield Traced(
            _seconds(request["t"], "t"),
            _number(request["in"], "in"),
            size,
            blocks,
            size * len(blocks),
            session=name,
        )


def _chat(line: Mapping[str, Any], file: str, numbers: Numbers) -> Iterator[Traced]:
    # Numbers belong to one file.
    base = _base((file, "chat"), numbers)
    ids = [base + _number(one, "hash_ids") for one in line["hash_ids"]]
    tokens = _number(line["input_length"], "input_length")
    yield Traced(
        _seconds(line["timestamp"], "timestamp", 1000),
        tokens,
        CHAT_BLOCK,
        array("Q", ids),
        tokens,
    )


def _own(line: Mapping[str, Any], _file: str, numbers: Numbers) -> Iterator[Traced]:
    if "stored" in line:
        return
    size, blocks = _number(line["block_size"], "block_size", 1), _named(line, "blocks", numbers)
    yield Traced(
        _seconds(line["at"], "at"),
        _number(line["in"], "in"),
        size,
        blocks,
        size * len(blocks),
        _number(line.get("bytes_per_token") or 0, "bytes_per_token"),
        str(line.get("ended") or ""),
    )


def _header(line: Mapping[str, Any], _file: str, _numbers: Numbers) -> Sequence[Traced]:
    if line[FORMAT] != VERSION:
        raise ValueError(f"version {line[FORMAT]!r} of the format; this reads {VERSION}")
    return ()


_READERS: dict[str, Callable[[Mapping[str, Any], str, Numbers], Iterable[Traced]]] = {
    FORMAT: _header,
    "part": _own,
    "requests": _session,
    "hash_ids": _chat,
}
"""Readers of a line, by a name that only that kind of line has."""


def _named(line: Mapping[str, Any], name: str, numbers: Numbers) -> "array[int]":
    """Return the blocks of a line of this cache's own, which each part salts anew."""
    raw, base = base64.b64decode(str(line[name]), validate=True), _base(line["part"], numbers)
    if len(raw) % BLOCK_BYTES:
        raise ValueError(f"{name} have {len(raw)} bytes, not a multiple of {BLOCK_BYTES}")
    pieces = (raw[i : i + BLOCK_BYTES] for i in range(0, len(raw), BLOCK_BYTES))
    return array("Q", [base + int.from_bytes(piece) for piece in pieces])


def _base(owner: Hashable, numbers: Numbers) -> int:
    return numbers.setdefault(owner, len(numbers)) << NUMBER_BITS


def _number(value: Any, name: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << NUMBER_BITS:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a whole number of at least {least}")
    return value


def _seconds(value: Any, name: str, units: int = 1) -> float:
    if type(value) not in (int, float) or not 0 <= value < units * MAX_SECONDS:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a time")
    return float(value) / units
