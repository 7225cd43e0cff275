"""Reads traces: sessions of agents, requests of a chat service, and what this cache writes itself.
Which of them a file is, its first line says."""

import base64
import binascii
import gzip
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from omlx_cache.requests.trace import BLOCK_BYTES, FORMAT, VERSION
from omlx_cache.simulate.agents import AgentSession, SessionRequest, schedule
from omlx_cache.simulate.errors import SimulationError, TraceError
from omlx_cache.simulate.requests import PageNumbers, Request, Workload, grouping, pages_of

CHAT_BLOCK = 512
"""The tokens of a block of the chat format, which does not say so."""
DEFAULT_BLOCK_SIZE = 256
MAX_BLOCKS = 10_000_000
"""More than a prompt of any model has: a run that claims more is a mistake."""
FORMATS = "a JSON object a line: a session, a chat request, or what `serve --trace` writes"
MAX_LINE_BYTES = 256 << 20
"""More than any request takes: a small packed file may claim to be one line of a terabyte."""
MAX_SECONDS = 1e10
"""Some centuries, times since the epoch included: stamps are in nanoseconds."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request whose blocks have names of their own, for `tokens` of its sequence; equal name,
    equal block."""

    at: float
    tokens_in: int
    tokens_out: int
    block_tokens: int
    blocks: tuple[Any, ...]
    tokens: int
    bytes_per_token: int = 0
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """The blocks of a sequence that some request left behind, whose prompt it begins with."""

    blocks: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What some files of one format hold: either sessions or requests."""

    sessions: tuple[AgentSession, ...] = ()
    requests: tuple[ChatRequest, ...] = ()

    def workload(self, *, agents: int, block_size: int | None, shuffle: str = "") -> Workload:
        """Return the requests in their order; raises SimulationError for a size that does not fit.

        `agents` and `shuffle` are for sessions only.
        """
        if self.sessions:
            size = block_size or DEFAULT_BLOCK_SIZE
            return schedule(self.sessions, agents=agents, block_size=size, shuffle=shuffle)
        return _workload(self.requests, block_size)


def read_traces(paths: Sequence[Path]) -> Trace:
    """Return what some files hold together; raises TraceError, naming file and line, and
    OSError."""
    found = [_read(path) for path in paths]
    if any(trace.sessions for trace in found) and any(trace.requests for trace in found):
        raise TraceError("the files are of two kinds, sessions and requests: give one kind")
    requests = chain.from_iterable(trace.requests for trace in found)
    return Trace(
        tuple(chain.from_iterable(trace.sessions for trace in found)),
        tuple(sorted(requests, key=lambda request: request.at)),
    )


def _read(path: Path) -> Trace:
    sessions: list[AgentSession] = []
    requests: list[ChatRequest] = []
    stored: list[Stored] = []
    kind: Callable[[str, Mapping[str, Any]], object] | None = None
    for number, line in _lines(path):
        try:
            document = _parsed(line)
            kind = kind or _kind(document)
            one = kind(str(path), document)
        except KeyError as error:
            raise TraceError(f"{path}, line {number}: it has no {error}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
        if isinstance(one, AgentSession):
            sessions.append(one)
        elif isinstance(one, ChatRequest):
            requests.append(one)
        elif isinstance(one, Stored):
            stored.append(one)
    if not sessions and not requests:
        raise TraceError(f"{path}: no request is in it")
    return Trace(tuple(sessions), tuple(_answered(requests, stored)))


def _answered(requests: list[ChatRequest], stored: Sequence[Stored]) -> list[ChatRequest]:
    """Return the requests with the blocks of their answers, where those were told apart."""
    waiting: dict[Any, deque[int]] = {}
    for at, request in enumerate(requests):
        if request.blocks:
            waiting.setdefault(request.blocks[-1], deque()).append(at)
    for one in stored:
        last = next((block for block in reversed(one.blocks) if waiting.get(block)), None)
        # Prompts are stored by themselves first: those say nothing of an answer.
        if last is not None and last != one.blocks[-1]:
            at = waiting[last].popleft()
            tokens = requests[at].block_tokens * len(one.blocks)
            requests[at] = replace(requests[at], blocks=one.blocks, tokens=tokens)
    return requests


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open("rb") as raw:
            # Looked at, not read: a pipe gives its bytes once.
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            lines = gzip.GzipFile(fileobj=raw) if packed else raw
            while line := lines.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) == MAX_LINE_BYTES:
                    raise TraceError(f"{path}, line {number}: it is longer than any request")
                if not line.isspace():
                    yield number, line.decode("utf-8")
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}, after line {number}: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


def _parsed(line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ValueError(f"expected {FORMATS}, this is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"expected {FORMATS}, not {type(document).__name__}")
    return document


def _kind(first: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], object]:
    if FORMAT in first:
        return _own
    if "runs" in first or "requests" in first:
        return _session
    if "hash_ids" in first:
        return _chat
    raise ValueError(f"expected {FORMATS}")


def _session(_file: str, line: Mapping[str, Any]) -> AgentSession:
    requests = line["requests"]
    if not isinstance(requests, list):
        raise ValueError("requests is not a list")
    return AgentSession(
        str(line["id"]),
        _count(line, "block_tokens", 1),
        _count(line, "tool_tokens"),
        _count(line, "system_tokens"),
        tuple(_session_request(request) for request in requests),
    )


def _session_request(line: Mapping[str, Any]) -> SessionRequest:
    if not isinstance(line, dict):
        raise ValueError("a request is not a JSON object")
    runs = _counts(line, "runs")
    if len(runs) % 2 or sum(runs[1::2]) > MAX_BLOCKS:
        raise ValueError("runs are not pairs of a first block and a count")
    return SessionRequest(_seconds(line, "t"), _count(line, "in"), _count(line, "out"), runs)


def _chat(file: str, line: Mapping[str, Any]) -> ChatRequest:
    # Numbers are those of one file.
    blocks = tuple((file, block) for block in _counts(line, "hash_ids"))
    tokens = _count(line, "input_length")
    return ChatRequest(
        _seconds(line, "timestamp") / 1000,
        tokens,
        _count(line, "output_length"),
        CHAT_BLOCK,
        blocks,
        tokens,
    )


def _own(_file: str, line: Mapping[str, Any]) -> ChatRequest | Stored | None:
    if FORMAT in line:
        if line[FORMAT] != VERSION:
            raise ValueError(f"version {line[FORMAT]!r} of the format; this reads {VERSION}")
        return None
    part = str(line["part"])
    # Names are salted anew by each part.
    names = str(line["stored"] if "stored" in line else line["blocks"])
    blocks = tuple((part, name) for name in _block_names(names))
    if "stored" in line:
        return Stored(blocks)
    size = _count(line, "block_size", 1)
    return ChatRequest(
        _seconds(line, "at"),
        _count(line, "in"),
        _count(line, "out"),
        size,
        blocks,
        size * len(blocks),
        _count(line, "bytes_per_token") if line.get("bytes_per_token") else 0,
        str(line.get("ended") or ""),
    )


def _block_names(text: str) -> list[bytes]:
    """Return the names in a line's `blocks`; raises ValueError for what is none."""
    try:
        names = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"blocks are not base64: {error}") from None
    if len(names) % BLOCK_BYTES:
        raise ValueError(f"blocks have {len(names)} bytes, not a multiple of {BLOCK_BYTES}")
    return [names[i : i + BLOCK_BYTES] for i in range(0, len(names), BLOCK_BYTES)]


def _count(line: Mapping[str, Any], name: str, least: int = 0) -> int:
    value = line[name]
    if type(value) is not int or not least <= value < 2**53:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a whole number of at least {least}")
    return value


def _counts(line: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = line[name]
    if not isinstance(values, list) or any(type(v) is not int or v < 0 for v in values):
        raise ValueError(f"{name} is not a list of whole numbers")
    return tuple(values)


def _seconds(line: Mapping[str, Any], name: str) -> float:
    value = line[name]
    if type(value) not in (int, float) or not 0 <= value < MAX_SECONDS * 1000:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a time")
    return float(value)


def _workload(requests: Sequence[ChatRequest], block_size: int | None) -> Workload:
    size = block_size
    if size is None:
        sizes = {request.block_tokens for request in requests}
        size = DEFAULT_BLOCK_SIZE if sizes == {CHAT_BLOCK} else max(sizes)
    numbers = PageNumbers()
    first = requests[0].at if requests else 0.0
    found: list[Request] = []
    for request in requests:
        how = grouping(request.block_tokens, size)
        if how is None:
            raise SimulationError(
                f"pages of {size} tokens and blocks of {request.block_tokens} do not fit each "
                f"other: give a multiple or a divisor of {request.block_tokens} as --block-size"
            )
        pages = pages_of(list(request.blocks), request.tokens, how, size, numbers)
        found.append(
            Request(
                request.at - first,
                pages,
                min(len(pages), request.tokens_in // size),
                request.tokens_in,
                request.tokens_out,
                request.ended,
            )
        )
    return Workload(found, len(numbers), size, _bytes_per_token(requests))


def _bytes_per_token(requests: Sequence[ChatRequest]) -> int:
    """Return what most tokens of a trace take."""
    tokens: dict[int, int] = {}
    for request in requests:
        if request.bytes_per_token:
            known = tokens.get(request.bytes_per_token, 0)
            tokens[request.bytes_per_token] = known + request.tokens_in
    return max(tokens, key=lambda size: tokens[size], default=0)
