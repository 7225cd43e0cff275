"""Frames of the control protocol: four bytes of length, big-endian, then one msgpack map.

A request is {v, op, args}; a reply is {ok: true, result} or {ok: false, error: {code, message}}.
Both ends are suspicious: lengths are checked before anything is allocated, and what a payload may
become is limited as well: an empty map is one byte in it and 64 in memory.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import msgpack

from omlx_cache.control.errors import ControlError

PROTOCOL_VERSION = 1
REQUEST_LIMIT = 64 * 2**10
REPLY_LIMIT = 64 * 2**20
DEPTH_LIMIT = 16
"""Containers inside each other: what is deeper can be neither shown nor written as JSON."""
HEADER = struct.Struct(">I")

_REQUEST_ITEMS = 1024
_REPLY_ITEMS = 2**22


Container: TypeAlias = dict[str, object] | list[object]


class Request(NamedTuple):
    """A well-formed request."""

    op: str
    args: Mapping[str, object]


def frame_length(header: bytes | bytearray, limit: int) -> int:
    """Return the length that a four-byte header announces; raises ControlError over `limit`."""
    (length,) = HEADER.unpack(header)
    if length > limit:
        raise ControlError("too_large", f"a frame has at most {limit} bytes, this one {length}")
    return int(length)


def encode_request(op: str, args: Mapping[str, object]) -> bytes:
    """Return a request's frame; raises ControlError when it is too large."""
    return _frame({"v": PROTOCOL_VERSION, "op": op, "args": dict(args)}, REQUEST_LIMIT)


def decode_request(payload: bytes | bytearray) -> Request:
    """Return the request in a frame's payload; raises ControlError for anything else."""
    message = _unpack(payload, _REQUEST_ITEMS)
    if message.get("v") != PROTOCOL_VERSION:
        raise ControlError(
            "version", f"protocol {PROTOCOL_VERSION} is spoken here, not {message.get('v')!r:.80}"
        )
    op, args = message.get("op"), message.get("args", {})
    if not isinstance(op, str) or not isinstance(args, dict):
        raise ControlError("bad_request", "a request has an `op` text and an `args` map")
    return Request(op, args)


def encode_result(result: object) -> bytes:
    """Return a successful reply's frame; raises ControlError when it cannot be expressed."""
    return _frame({"ok": True, "result": result}, REPLY_LIMIT)


def encode_error(error: ControlError) -> bytes:
    """Return a failed reply's frame. Never raises."""
    message = str(error)[:4096].encode(errors="replace").decode()
    return _frame({"ok": False, "error": {"code": error.code, "message": message}}, REPLY_LIMIT)


def decode_reply(payload: bytes | bytearray) -> object:
    """Return a reply's result; raises ControlError with the store's code when it is an error."""
    message = _unpack(payload, _REPLY_ITEMS)
    if message.get("ok") is True:
        return message.get("result")
    error = message.get("error")
    if not isinstance(error, dict):
        raise ControlError("bad_reply", "neither a result nor an error came back")
    raise ControlError(str(error.get("code", "failed")), str(error.get("message", "")))


def _frame(message: Mapping[str, object], limit: int) -> bytes:
    try:
        payload: bytes = msgpack.packb(message, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise ControlError("failed", f"cannot be expressed in msgpack: {error}") from error
    if len(payload) > limit:
        raise ControlError(
            "too_large", f"a frame has at most {limit} bytes, this one would have {len(payload)}"
        )
    return HEADER.pack(len(payload)) + payload


class _Budget:
    """Counts the values of the containers that a decoder has made, and stops it in time."""

    def __init__(self, items: int) -> None:
        self._items = self._left = items

    def __call__(self, container: Container) -> Container:
        self._left -= len(container) + 1
        if self._left < 0:
            raise ValueError(f"more than {self._items} values")
        return container


def _unpack(payload: bytes | bytearray, items: int) -> dict[str, object]:
    # A decoder makes room for an array when its header says so: for each of those that are nested.
    length, budget = min(items, len(payload)), _Budget(items)
    try:
        message = msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            max_array_len=length,
            max_map_len=length,
            list_hook=budget,
            object_hook=budget,
        )
    except Exception as error:
        # msgpack's errors share no base: Unpack-, Value-, Type-, Unicode- and RecursionError.
        raise ControlError("bad_request", f"not a msgpack message: {error!s:.200}") from error
    if not isinstance(message, dict):
        raise ControlError("bad_request", "a message is a map")
    _check_depth(message)
    return message


def _check_depth(message: dict[str, object]) -> None:
    """Raise ControlError for containers more than `DEPTH_LIMIT` deep."""
    level: list[Container] = [message]
    for _ in range(DEPTH_LIMIT):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ControlError("bad_request", f"a message is at most {DEPTH_LIMIT} containers deep")
