"""Where a setting's value came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omlx_cache.settings.sizes import format_size

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
    if isinstance(value, int) and name.endswith("_bytes"):
        return format_size(value)
    return str(value)


def plain(value: object) -> object:
    """Return a value as JSON has it."""
    return str(value) if isinstance(value, Path) else value
