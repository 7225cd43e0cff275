"""What travels on the control socket: requests that a store reads, answers that a command reads."""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from omlx_cache.control.errors import CHANGES, STORE, ControlError
from omlx_cache.status.routes import ROUTES, Routes
from omlx_cache_daemon.client import as_map, as_maps, decode_answer, encode_request
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.render import text

from .mutate import nested, spoil_bytes, spoil_value
from .target import MIB, Target, refused

REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ping", {}),
    ("ls", {"namespace": "ab" * 4, "limit": 10}),
    ("events", {"kinds": ["stored", "removed"], "kv": True, "after": 7}),
    ("clear", {"namespace": "ab" * 32, "timeout": 2.5}),
    (
        "prune",
        {
            "keep": [{"format": "1", "mlx": "0", "mlx-lm": "0"}],
            "before_ns": 10**18,
            "to_bytes": 2**30,
            "dry_run": True,
        },
    ),
)
ROW = {"key": "ab" * 32, "group": "paged", "position": 256, "bytes": 2**20, "tiers": ["cold"],
       "age_s": 1.5, "path": "/x"}  # fmt: skip
ANSWERS: tuple[Any, ...] = ({"pid": 1, "version": "0", "hot": {"bytes": 1, "pages": 2}}, [ROW, ROW])
HEAD = b"HTTP/1.1 %d OK\r\nContent-Type: x\r\nContent-Length: %d\r\nDate: x\r\n\r\n"


def _echo(args: Mapping[str, object]) -> object:
    assert all(args), "every parameter has a name"
    return args


_ROUTES = Routes({path.removeprefix(STORE): _echo for path in ROUTES if path.startswith(STORE)})


def one_request(data: bytes) -> bool:
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3:
        return False
    answer = _ROUTES.answer(words[0], words[1], {}, None, body)
    if answer.status == 200:
        json.loads(answer.body)
        return True
    assert answer.status < 500, answer.body
    return refused(ValueError(answer.body.decode()))


def one_answer(data: bytes) -> bool:
    try:
        result = decode_answer(data, "here")
    except (ControlError, CommandError) as error:
        # Its text is the store's own.
        return refused(error, len(data))
    # What the command line does with any answer.
    assert text(result).isprintable()
    for check in (as_map, as_maps):
        try:
            check(result)
        except CommandError:
            continue
    return True


def vary(rng: Random, sample: bytes) -> bytes:
    head, _, body = sample.partition(b"\r\n\r\n")
    kind = rng.random()
    if kind < 0.4 and body:
        value = spoil_value(rng, json.loads(body))
        body = json.dumps(value, default=str).encode(errors="replace")
    elif kind < 0.5:
        body = json.dumps(nested(rng.choice((10, 100)), rng.choice((list, dict)))).encode()
    elif kind < 0.6:
        body = rng.choice((b"[", b'{"a":', b"1e", b'"\\ud800', b"NaN ")) * rng.choice((1, 50_000))
    elif kind < 0.8:
        head = spoil_bytes(rng, head)
    else:
        return spoil_bytes(rng, sample)
    if head.startswith(b"HTTP/") and rng.random() < 0.9:
        return HEAD % (200, len(body)) + body
    return head + b"\r\n\r\n" + body


def requests() -> list[bytes]:
    assert {name for name, _ in REQUESTS} & CHANGES
    return [encode_request(name, args) for name, args in REQUESTS]


def answers() -> list[bytes]:
    bodies = [json.dumps(answer).encode() for answer in ANSWERS]
    return [HEAD % (200, len(body)) + body for body in bodies] + [HEAD % (503, 6) + b'"busy"']


REQUEST = Target("request", requests, vary, one_request, constant=16 * MIB)
REPLY = Target("reply", answers, vary, one_answer, constant=32 * MIB, factor=100)
