"""Values of settings: how they are read, where they came from, how they are shown and refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, LiteralString, get_args

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from omlx_cache.settings.names import ConfigError
from omlx_cache.settings.sizes import format_size
from omlx_cache_storage.remote.address import RemoteAddress

CONSEQUENCE: LiteralString = "consequence"
"""Type of an error that only follows from another field's error."""
HIDDEN = "(hidden)"
"""What is shown of a secret that was given."""

OriginKind = Literal["default", "derived", "environment", "argument"]


class Allowed(str):
    """Annotates a field with what it accepts, in words."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SettingSource:
    """One setting: its value, the value for people, and its origin; `detail` is the environment
    variable, or how a default was derived."""

    name: str
    value: object
    rendered: str
    kind: OriginKind
    detail: str = ""

    @property
    def origin(self) -> str:
        """The origin in words, such as `derived (1/8 of 32 GiB, physical memory)`."""
        if self.kind == "derived":
            return f"derived ({self.detail})"
        return f"{self.kind} {self.detail}".rstrip()

    def to_dict(self) -> dict[str, object]:
        return {
            "value": self.value if isinstance(self.value, bool | int | float) else self.rendered,
            "rendered": self.rendered,
            "kind": self.kind,
            "origin": self.origin,
        }


def lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def said(value: object) -> str:
    given = value.get_secret_value() if isinstance(value, SecretStr) else value
    if given is None or lower(given) in ("", "off"):
        return "off"
    if not isinstance(given, str):
        raise ValueError("not a text")
    return given


def allowed(field: FieldInfo) -> str:
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
    """Return one line for each refused setting: its name, what came, what is allowed. `given_as`
    tells under which name (variable or keyword) a setting came, and what came."""
    causes = [one for one in error.errors() if one["type"] != CONSEQUENCE]
    return ConfigError("\n".join(_line(one, fields, given_as) for one in causes))


def _line(
    one: Any, fields: Mapping[str, FieldInfo], given_as: Callable[[str], tuple[str, Any]]
) -> str:
    name = str(one["loc"][0])
    shown, value = given_as(name)
    reason = f" ({one['ctx']['error']})" if one["type"] == "value_error" else ""
    hidden = {SecretStr, RemoteAddress} & set(get_args(fields[name].annotation))
    got = "a value that may be secret" if hidden else repr(value)
    values = allowed(fields[name])
    if values.removeprefix("off, or ") in reason:
        return f"{shown}: got {got}{reason}"
    return f"{shown}: got {got}{reason}; allowed: {values}"


def render(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, int) and name.endswith("_bytes"):
        return format_size(value)
    return str(value)
