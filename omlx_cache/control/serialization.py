"""Answers as JSON, which are frozen dataclasses in Python: written, read, and as JSON schemas.

A document has a dataclass's fields and its properties, which are not read again. Fields may be
added in a later version: one that is not known is passed over.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_JSON = {int: "integer", float: "number", str: "string", bool: "boolean"}


class OtherShape(ValueError):
    """Values are not those of a dataclass: another version's, or another's altogether."""


def document(answer: Any) -> dict[str, object]:
    """Return an answer's fields and properties by name, with answers in it as they are. Raises
    TypeError for a value that is no answer."""
    kind: Any = type(answer)
    return {name: getattr(answer, name) for name in _hints(kind)}


def extended(kind: type[T], answer: Any, **more: object) -> T:
    """Return an answer of another kind: with what `answer` has of its fields, and more."""
    names = [one.name for one in dataclasses.fields(kind) if hasattr(answer, one.name)]  # type: ignore[arg-type]
    return kind(**{**{name: getattr(answer, name) for name in names}, **more})


def encoded(answer: object) -> bytes:
    """Return answers and plain values as JSON that every reader takes: one line of ASCII, with null
    for a float that is no number. Raises TypeError for other values."""
    try:
        text = json.dumps(answer, allow_nan=False, default=document)
    except ValueError:
        text = json.dumps(_finite(answer), allow_nan=False)
    return text.encode("ascii")


def _finite(value: Any) -> object:
    if _is_answer(value):
        value = document(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def read(kind: type[T], value: object) -> T:
    """Raises OtherShape."""
    return cast(T, _read(kind, value, kind.__name__))


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if _is_answer(kind) and isinstance(value, Mapping):
        hints = _hints(kind)
        known = [field.name for field in dataclasses.fields(kind) if field.name in value]
        try:
            return kind(**{n: _read(hints[n], value[n], f"{where}.{n}") for n in known})
        except TypeError as error:
            raise OtherShape(f"{where}: {error}") from error
    if origin in (Union, UnionType):
        return None if value is None else _read(inner[0], value, where)
    if origin is Mapping and isinstance(value, Mapping):
        return {name: _read(inner[1], one, where) for name, one in value.items()}
    if origin in (tuple, Sequence) and isinstance(value, list):
        return tuple(_read(inner[0], one, where) for one in value)
    if kind is float and (value is None or isinstance(value, int)):
        # JSON has null for a float that is no number.
        return math.nan if value is None else float(value)
    if origin is None and isinstance(value, kind):
        return value
    raise OtherShape(f"{where}: got {value!r:.60}")


def schema(kind: Any) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if _is_answer(kind):
        hints = _hints(kind)
        return {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").partition("\n\n")[0].split()),
            "properties": {name: schema(hint) for name, hint in hints.items()},
            "required": list(hints),
        }
    if origin in (Union, UnionType):
        return {"anyOf": [schema(one) for one in inner]}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema(inner[1])}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": schema(inner[0])}
    if origin is Literal:
        return {"enum": list(inner)}
    if kind is object:
        return {}
    return {"type": "null" if kind is NoneType else _JSON[kind]}


def _is_answer(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields and properties, by name; raises TypeError for
    another class."""
    hints = get_type_hints(kind)
    found = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    for base in reversed(kind.__mro__):
        for name, one in vars(base).items():
            if isinstance(one, property):
                found[name] = get_type_hints(one.fget)["return"]
    return found
