"""Pydantic's errors in the words of the person who set the value."""

from collections.abc import Callable, Mapping
from typing import Any, LiteralString, get_args

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from omlx_cache.settings.errors import ConfigError
from omlx_cache_storage.remote.address import RemoteAddress

CONSEQUENCE: LiteralString = "consequence"
"""Type of an error that only follows from another field's error."""


class Allowed(str):
    """Annotates a field with what it accepts, in words."""

    __slots__ = ()


def allowed(field: FieldInfo) -> str:
    """Return what a field accepts, in words."""
    for note in field.metadata:
        if isinstance(note, Allowed):
            return str(note)
    if field.annotation is bool:
        return "true or false"
    choices = get_args(field.annotation)
    if choices:
        return " or ".join((", ".join(choices[:-1]), choices[-1])) if choices[1:] else choices[0]
    limits = {key: getattr(note, key) for note in field.metadata for key in ("ge", "le")
              if hasattr(note, key)}  # fmt: skip
    text = "a number" if field.annotation is float else "a whole number"
    if "le" in limits:
        return f"{text} from {limits['ge']} to {limits['le']}"
    return f"{text}, {limits['ge']} or more"


def config_error(
    error: ValidationError,
    fields: Mapping[str, FieldInfo],
    given_as: Callable[[str], tuple[str, Any]],
) -> ConfigError:
    """Return one line for each refused setting: its name, what came, what is allowed.

    `given_as` tells under which name (variable or keyword) a setting came, and what came.
    """
    causes = [one for one in error.errors() if one["type"] != CONSEQUENCE]
    return ConfigError("\n".join(_line(one, fields, given_as) for one in causes))


def _line(
    one: Any, fields: Mapping[str, FieldInfo], given_as: Callable[[str], tuple[str, Any]]
) -> str:
    name = str(one["loc"][0])
    shown, value = given_as(name)
    reason = f" ({one['ctx']['error']})" if one["type"] == "value_error" else ""
    hidden = {SecretStr, RemoteAddress} & set(get_args(fields[name].annotation))
    got = "what is not shown" if hidden else repr(value)
    values = allowed(fields[name])
    if values.removeprefix("off, or ") in reason:
        return f"{shown}: got {got}{reason}"
    return f"{shown}: got {got}{reason}; allowed: {values}"
