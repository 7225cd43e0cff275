"""What processes answer each other, as frozen dataclasses: read from JSON, and as its schema.

A document has a dataclass's fields and its properties, which are not read again. Fields may be
added in a later version: one that is not known is passed over.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_JSON = {int: "integer", float: "number", str: "string", bool: "boolean"}


class OtherShape(ValueError):
    """Values are not those of a dataclass: another version's, or another's altogether."""


def read(kind: type[T], value: object) -> T:
    """Return an answer from plain values; raises OtherShape."""
    found: T = _read(kind, value, kind.__name__)
    return found


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        known = [name for name in _fields(kind) if name in value]
        try:
            make: Any = kind
            return make(**{n: _read(hints[n], value[n], f"{where}.{n}") for n in known})
        except TypeError as error:
            raise OtherShape(f"{where}: {error}") from error
    if origin in (Union, UnionType):
        return None if value is None else _read(inner[0], value, where)
    if origin is Mapping and isinstance(value, Mapping):
        return {name: _read(inner[1], one, where) for name, one in value.items()}
    if origin in (tuple, Sequence) and isinstance(value, list):
        return tuple(_read(inner[0], one, where) for one in value)
    if kind is float and (value is None or isinstance(value, int)):
        # JSON has null for what is no number.
        return math.nan if value is None else float(value)
    if origin is None and isinstance(value, kind):
        return value
    raise OtherShape(f"{where}: got {value!r:.60}")


def schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of the documents of a kind of answer."""
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        hints |= {
            name: get_type_hints(one.fget)["return"] for name, one in _properties(kind).items()
        }
        names = [*_fields(kind), *_properties(kind)]
        return {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").partition("\n\n")[0].split()),
            "properties": {name: schema(hints[name]) for name in names},
            "required": names,
        }
    if origin in (Union, UnionType):
        return {"anyOf": [schema(one) for one in inner]}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema(inner[1])}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": schema(inner[0])}
    if origin is Literal:
        return {"enum": list(inner)}
    return {"type": "null" if kind is NoneType else _JSON[kind]}


def _fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _properties(kind: Any) -> dict[str, property]:
    return {name: one for name, one in vars(kind).items() if isinstance(one, property)}
