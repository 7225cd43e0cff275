"""Frames of the control socket: requests that a store reads, replies that a command reads."""

import struct
from random import Random
from typing import Any

import msgpack

from omlx_cache.control.errors import ControlError
from omlx_cache.control.frames import (
    HEADER,
    REPLY_LIMIT,
    REQUEST_LIMIT,
    decode_reply,
    decode_request,
    encode_error,
    encode_request,
    encode_result,
    frame_length,
)
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.render import text
from omlx_cache_daemon.replies import as_map, as_maps

from .mutate import nested, spoil_bytes, spoil_value
from .target import MIB, Target, refused

REQUESTS: tuple[dict[str, Any], ...] = (
    {"v": 1, "op": "ping", "args": {}},
    {"v": 1, "op": "ls", "args": {"namespace": "ab" * 4, "limit": 10}},
    {"v": 1, "op": "clear", "args": {"namespace": "ab" * 32, "timeout": 2.5}},
    {
        "v": 1,
        "op": "prune",
        "args": {
            "keep": [{"format": "1", "mlx": "0", "mlx-lm": "0"}],
            "before_ns": 10**18,
            "to_bytes": 2**30,
            "dry_run": True,
        },
    },
)
ROW = {"key": "ab" * 32, "group": "paged", "position": 256, "bytes": 2**20, "tiers": ["cold"],
       "age_s": 1.5, "path": "/x"}  # fmt: skip
REPLIES: tuple[dict[str, Any], ...] = (
    {"ok": True, "result": {"pid": 1, "version": "0", "hot": {"bytes": 1, "pages": 2}}},
    {"ok": True, "result": [ROW, ROW]},
    {"ok": False, "error": {"code": "busy", "message": "64 requests wait"}},
)


def one_request(data: bytes) -> bool:
    payload = _payload(data, REQUEST_LIMIT)
    if payload is None:
        return False
    try:
        request = decode_request(payload)
    except ControlError as error:
        encode_error(error)
        return refused(error)
    assert isinstance(request.op, str)
    try:
        frame = encode_request(request.op, request.args)
    except ControlError as error:
        # A text of lone surrogates, say, can be read and not written.
        if error.code not in ("failed", "too_large"):
            raise
        return True
    assert _same(decode_request(frame[HEADER.size :]), request)
    return True


def one_reply(data: bytes) -> bool:
    payload = _payload(data, REPLY_LIMIT)
    if payload is None:
        return False
    try:
        result = decode_reply(payload)
    except ControlError as error:
        # Its text is the store's own.
        encode_error(error)
        return refused(error, len(data))
    # What the command line does with any reply.
    assert text(result).isprintable()
    for check in (as_map, as_maps):
        try:
            check(result)
        except CommandError:
            continue
    assert _same(decode_reply(encode_result(result)[HEADER.size :]), result)
    return True


def _payload(data: bytes, limit: int) -> bytes | None:
    """Return what a reader takes for a frame, None when it refuses the length or waits for more."""
    if len(data) < HEADER.size:
        return None
    try:
        length = frame_length(data[: HEADER.size], limit)
    except ControlError:
        return None
    payload = data[HEADER.size :]
    return payload[:length] if len(payload) >= length else None


def _same(one: object, other: object) -> bool:
    """Equal, where a NaN equals itself: as both would be written."""
    return repr(one) == repr(other)


def vary(rng: Random, sample: bytes) -> bytes:
    kind = rng.random()
    message = msgpack.unpackb(sample[4:])
    if kind < 0.5:
        payload = _packed(spoil_value(rng, message))
    elif kind < 0.6:
        message[rng.choice(("v", "op", "args", "ok", "result", "error"))] = nested(
            rng.choice((10, 400, 900)), rng.choice((list, dict))
        )
        payload = _packed(message)
    elif kind < 0.85:
        payload = _hand_made(rng)
    else:
        payload = spoil_bytes(rng, sample[4:])
    length = len(payload) if rng.random() < 0.9 else rng.choice((0, 1, 2**20, 2**20 + 1, 2**32 - 1))
    return struct.pack(">I", length) + payload


def _packed(message: object) -> bytes:
    try:
        packed: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
    except (ValueError, OverflowError, RecursionError):
        return b"\x80"
    return packed


def _hand_made(rng: Random) -> bytes:
    """Return msgpack that no encoder writes: extensions, times, nesting, lying lengths."""
    pieces = (
        b"\xd4\x01x", b"\xd6\xff\0\0\0\1", b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff" + b"\xff" * 12, b"\xc7\x00\x05", b"\xc9\xff\xff\xff\xff\x01",
        b"\xdd\xff\xff\xff\xff", b"\xdf\0\4\0\0",
        b"\xdc\x04\x00", b"\xdd\0\4\0\0", b"\xc6\x7f\xff\xff\xff", b"\xdb\0\0\1\0",
        b"\xc1", b"\xe0",
        b"\xa2\xff\xfe", b"\xa3\xed\xa0\x80", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8,
        b"\x81\x01\x02", b"\x81\x90\x02", b"\x82\xa1a\x01\xa1a\x02", b"\x80", b"\x90",
    )  # fmt: skip
    shape = rng.randrange(4)
    if shape == 0:
        return rng.choice(pieces) * rng.choice((1, 10, 500, 5000))
    if shape == 1:
        head = rng.choice((b"\x91", b"\x81\xa1a", b"\xdc\x04\x00", b"\xdd\0\x03\xff\xff"))
        return head * rng.choice((10, 500, 1023, 1025, 4000)) + b"\xc0"
    if shape == 2:
        count = rng.choice((16, 1024, 1025, 30_000))
        return b"\x81\xa6result\xdc" + count.to_bytes(2, "big") + rng.choice(pieces) * count
    body = b"".join(rng.choice(pieces) for _ in range(rng.randrange(1, 6)))
    return rng.choice((b"\x83\xa1v\x01\xa2op\xa1x\xa4args", b"\x82\xa2ok\xc3\xa6result")) + body


def requests() -> list[bytes]:
    return [encode_request(r["op"], r["args"]) for r in REQUESTS]


def replies() -> list[bytes]:
    return [struct.pack(">I", len(p)) + p for p in map(_packed, REPLIES)]


REQUEST = Target("request", requests, vary, one_request, constant=16 * MIB)
REPLY = Target("reply", replies, vary, one_reply, constant=32 * MIB, factor=100)
"""An empty map is a byte in a frame and 64 in memory, and its place in a list 8."""
