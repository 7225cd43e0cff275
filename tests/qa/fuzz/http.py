"""Throws requests as nobody should send them at a real `omlx-cache serve`: no crash, no hang, no
growth, an answer to each that is whole, and no error of ours; mlx-lm's server and its model may
have theirs. `python -m qa.fuzz.http --count 50000`, with `tests` on the path.

They follow from a seed: fields of any type, bytes changed at random, headers that lie, lines that
are none. None of them is a request that takes long to answer.
"""

import argparse
import json
import random
import re
import socket
import string
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kit.tinylm import LmServer, make_model, serve_ours
from kit.wire import Answer, completion, connected, exchange, read_answer
from kit.work import resident_bytes

from .mutate import any_value, spoil_bytes

SECONDS = 60.0
"""An answer that takes longer is a hang."""
GROWTH_BYTES = 96 << 20
"""What the server's caches of stop words and the allocator's pools may take."""
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
_LONGEST_ANSWER = 4
_TRACEBACK = re.compile(r"^Traceback .*(?:\n +.*)+", re.MULTILINE)
_FRAME = re.compile(r'File "([^"]*)"')

_FIELDS = [
    "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "repetition_context_size", "presence_penalty", "presence_context_size", "frequency_penalty",
    "frequency_context_size", "xtc_probability", "xtc_threshold", "logit_bias", "logprobs",
    "top_logprobs", "seed", "stop", "tools", "messages", "prompt", "role_mapping", "max_tokens",
    "max_completion_tokens", "num_draft_tokens", "chat_template_kwargs", "unknown",
]  # fmt: skip
_ROLES = ["system", "user", "assistant", "tool", "", "developer"]
_LINES = [
    b"GET / HTTP/1.1", b"GET /health HTTP/1.0", b"HEAD / HTTP/1.1", b"OPTIONS * HTTP/1.1",
    b"PUT /v1/completions HTTP/1.1", b"POST /v1/completions", b"POST", b"POST / HTTP/2.0",
    b"POST  /v1/completions  HTTP/1.1", b"post /v1/completions HTTP/1.1", b"\x16\x03\x01",
    b"GET /v1/models/" + b"%ff" * 30 + b" HTTP/1.1", b"POST /v1/completions HTTP/1.1\x00",
]  # fmt: skip
_LENGTHS = ["-1", "", "x", "0", "1", "00009", "9" * 30, "1e3", "0x10", "5, 5", "\u0661"]


class Sent(NamedTuple):
    """Bytes for one connection; `whole` when a server can tell that the request has ended."""

    content: bytes
    whole: bool


def requests(count: int, seed: int) -> Iterator[Sent]:
    """Yield `count` requests; the same for the same seed."""
    chance = random.Random(seed)
    kinds = [_fields, _bytes, _shapes, _headers, _lines, _cut]
    for _ in range(count):
        yield chance.choices(kinds, [30, 40, 8, 10, 7, 5])[0](chance)


def largest(count: int, seed: int) -> Iterator[Sent]:
    """Yield requests of the kind that takes most memory."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _shapes(chance)


def _valid(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.5:
        return {"prompt": _text(chance), "max_tokens": 1}
    messages = [
        {"role": chance.choice(_ROLES), "content": chance.choice([_text(chance), None])}
        for _ in range(chance.randint(1, 4))
    ]
    return {"messages": messages, "max_tokens": 1}


def _text(chance: random.Random) -> str:
    return "".join(chance.choices(string.printable + "αβγδ", k=chance.randint(1, 60)))


def _fields(chance: random.Random) -> Sent:
    body = _valid(chance)
    for _ in range(chance.randint(1, 3)):
        body[chance.choice(_FIELDS)] = any_value(chance)
    if chance.random() < 0.01:
        body[chance.choice(["model", "draft_model", "adapters"])] = any_value(chance)
    return Sent(_post(chance, _dump(body)), True)


def _bytes(chance: random.Random) -> Sent:
    body = spoil_bytes(chance, _dump(_valid(chance)))
    return Sent(_post(chance, body if chance.random() < 0.75 else chance.randbytes(300)), True)


def _shapes(chance: random.Random) -> Sent:
    deep = chance.choice([50, 99, 101, 2_000, 50_000])
    body = chance.choice(
        [
            b"[" * deep + b"]" * deep,
            b'{"a":' * deep + b"0" + b"}" * deep,
            b'{"prompt":"a","x":' + b"[" * deep + b"]" * deep + b"}",
            b'{"prompt":"a","seed":' + b"9" * chance.choice([30, 400, 401, 9_000]) + b"}",
            b'{"prompt":[' + b"5," * chance.choice([10, 100_000]) + b"-1]}",
            b'{"prompt":"a","temperature":'
            + chance.choice([b"NaN", b"-Infinity", b"1e999"])
            + b"}",
            b'{"prompt":"a","prompt":"b"}',
            b'{"prompt":"' + b"\\u0041" * 200 + b'","max_tokens":1}',
            b'{"prompt":"a","stop":["' + b'","'.join([b"x"] * 3_000) + b'"]}',
            b'{"prompt":"' + b"a" * 100_000 + b'"}',
        ]
    )
    return Sent(_post(chance, body), True)


def _headers(chance: random.Random) -> Sent:
    body = _dump(_valid(chance))
    lines = [f"Content-Length: {chance.choice([*_LENGTHS, str(len(body))])}"]
    lines += chance.choices(
        ["Transfer-Encoding: chunked", "Expect: 100-continue", "Connection: keep-alive",
         "Origin: x", "Content-Type: text/x", "no colon", "X: " + "y" * 3_000, ": empty",
         "Content-Encoding: gzip",
         f"Content-Length: {len(body)}"],
        k=chance.randint(0, 3),
    )  # fmt: skip
    chance.shuffle(lines)
    head = "\r\n".join([f"POST {TEXT} HTTP/1.1", *lines]).encode("utf-8")
    return Sent(head + b"\r\n\r\n" + body, False)


def _lines(chance: random.Random) -> Sent:
    line = chance.choice(_LINES)
    if chance.random() < 0.3:
        line = chance.randbytes(chance.randint(1, 100)).replace(b"\n", b"")
    return Sent(line + b"\r\nHost: x\r\n\r\n", False)


def _cut(chance: random.Random) -> Sent:
    whole = _post(chance, _dump(_valid(chance)))
    return Sent(whole[: chance.randrange(len(whole))], False)


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _post(chance: random.Random, body: bytes) -> bytes:
    """A request for a path that fits, most of the time; a body that asks for much gets little."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if isinstance(asked, dict) and any(map(_is_long, map(asked.get, _COUNTS))):
        body = b'{"prompt": 5}'
    path = CHAT if b'"messages"' in body else TEXT
    path = chance.choice([path] * 20 + [TEXT, CHAT, "/chat/completions", "/v1", "*"])
    return f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


_COUNTS = ("max_tokens", "max_completion_tokens")


def _is_long(count: object) -> bool:
    return isinstance(count, int) and _LONGEST_ANSWER < count < 2**31


@dataclass
class HttpReport:
    """What was seen; `wrong` says what went wrong."""

    statuses: "Counter[int]" = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def attack(count: int, seed: int) -> HttpReport:
    """Send `count` requests to a server of a tiny model and return what was seen."""
    report = HttpReport()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        model = make_model(home / "model", "qwen3")
        flags = ["--model", str(model), "--max-tokens", "1", "--log-level", "ERROR"]
        budgets = {"OMLX_CACHE_HOT_BYTES": "16MiB", "OMLX_CACHE_COLD_BYTES": "64MiB"}
        server = serve_ours(home, *flags, **budgets)
        try:
            # What the process loads, and keeps of memory that it once needed, is no growth.
            for sent in largest(100, seed):
                _one(server, sent, HttpReport())
            before = resident_bytes(server.process.pid)
            for sent in requests(count, seed):
                _one(server, sent, report)
                if server.process.poll() is not None:
                    report.wrong.append(f"the server ended behind {sent.content[:2000]!r}")
                    return report
            grown = resident_bytes(server.process.pid) - before
            if grown > GROWTH_BYTES:
                report.wrong.append(f"the server grew by {grown} bytes")
            if exchange(server.url, completion(prompt="still there?")).status != 200:
                report.wrong.append("the server no longer answers")
            if server.stop() != 0:
                report.wrong.append("the server did not end well")
            for traceback in _TRACEBACK.findall(server.text()):
                if "site-packages" not in _FRAME.findall(traceback)[-1]:
                    report.wrong.append(traceback)
        finally:
            server.kill()
    return report


def _one(server: LmServer, sent: Sent, report: HttpReport) -> None:
    answer = Answer(0, {}, b"")
    try:
        with connected(server.url, SECONDS) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(sent.content)
                if not sent.whole:
                    connection.shutdown(socket.SHUT_WR)
            answer = read_answer(connection)
    except TimeoutError:
        report.wrong.append(f"no answer in {SECONDS:.0f} s to {sent.content[:2000]!r}")
    except OSError:
        pass
    report.statuses[answer.status] += 1
    is_theirs = answer.status == 501 or b"the model failed: " in answer.content
    if answer.status >= 500 and not is_theirs:
        report.wrong.append(f"{answer.status} {answer.error} to {sent.content[:2000]!r}")
    if sent.whole and not answer.status:
        report.wrong.append(f"no answer to {sent.content[:2000]!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen = attack(given.count, given.seed)
    print(f"{seen.statuses.total():,} requests, by status (0: closed) {dict(seen.statuses)}")
    print(*seen.wrong, sep="\n")
    sys.exit(1 if seen.wrong else 0)
