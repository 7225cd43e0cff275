"""Where a setting's value came from."""

from dataclasses import dataclass
from typing import Literal

from omlx_cache.settings.sizes import format_size

HIDDEN = "(hidden)"
"""What is shown of a secret that was given."""

OriginKind = Literal["default", "derived", "environment", "argument"]


@dataclass(frozen=True, slots=True)
class SettingSource:
    """One setting: its value, the value for people, and its origin.

    `detail` is the environment variable, or how a default was derived; else it is empty.
    """

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
        """Return plain values, for JSON and the control socket."""
        return {
            "value": plain(self.value),
            "rendered": self.rendered,
            "kind": self.kind,
            "origin": self.origin,
        }


def render(name: str, value: object) -> str:
    """Return a value as it could be set again, sizes in binary units."""
    if isinstance(value, bool):
        return str(value).lower()
    if is_secret(value):
        return HIDDEN
    if isinstance(value, int) and name.endswith("_bytes"):
        return format_size(value)
    return str(value)


def plain(value: object) -> object:
    """Return a value as JSON has it, and a secret as `HIDDEN`."""
    if is_secret(value):
        return HIDDEN
    return value if isinstance(value, (bool, int, float)) or value is None else str(value)


def is_secret(value: object) -> bool:
    """Tell whether a value is not to be shown."""
    return hasattr(value, "get_secret_value")
