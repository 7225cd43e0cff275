"""A body's bytes, made an object in memory that its own limits bound, or the reason why not."""

import json
import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from omlx_cache.integrations.mlx_lm.server.limits import JSON_DEPTH, JSON_DIGITS
from omlx_cache.integrations.mlx_lm.server.refusals import BadRequest

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NUMBER = re.compile(rb"[0-9]{%d}" % (JSON_DIGITS + 1))
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def parse_body(raw: bytes | bytearray, values: int) -> dict[str, Any]:
    """Return the object that a body holds; raises BadRequest.

    Its structure is looked at first: a body of two-byte values would take thirty times its size.
    """
    _check_shape(raw, values)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body must be UTF-8: byte {error.start} is not") from None
    try:
        body = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BadRequest(f"Invalid JSON in request body: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("Request should be a JSON dictionary")
    return body


def _check_shape(raw: bytes | bytearray, values: int) -> None:
    bare = _STRING.sub(b"", raw)
    if sum(map(bare.count, (b",", b"[", b"{"))) >= values:
        raise BadRequest(
            f"the body must have at most {values} values (serve --max-prompt-tokens raises this)"
        )
    brackets = bare.translate(None, _NO_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > JSON_DEPTH:
        raise BadRequest(f"the body must be nested at most {JSON_DEPTH} deep")
    if _NUMBER.search(bare):
        raise BadRequest(f"a number in the body must have at most {JSON_DIGITS} digits")


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise BadRequest(f"an object in the body has {name[:100]!r} twice")
        made[name] = value
    return made


def _refuse_constant(name: str) -> Any:
    raise BadRequest(f"{name} in the body is no JSON")
