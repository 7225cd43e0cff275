"""The service's own settings: what is no store's, in its file, as `OMLX_CACHED_*` and as flags."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from omlx_cache.settings.machine import expand
from omlx_cache.settings.names import REMOVED
from omlx_cache.settings.sizes import SIZE_FORMS, parse_size
from omlx_cache.settings.values import Allowed

PREFIX = "OMLX_CACHED_"
"""Not that of a store's variables: a store refuses what it does not know."""
SECRETS = ("remote_password", "remote_secret")
"""In no flag, which others see, and no file that is shown around: in files of their own, which
`file:PATH` names, or in the environment."""
SHARED_NAMES = (
    "cold_dir",
    "cold_bytes",
    "min_free_bytes",
    "log_level",
    "remote",
    *SECRETS,
    "remote_encrypt",
    "remote_writes",
    "remote_lookup_seconds",
)
"""Settings of a store that mean the same here, and are read from the same variables."""
REMOVED_NAMES = tuple(name for name in REMOVED if name.startswith("remote_"))
"""Those of them that were removed: a file or a command line that still has one is read."""


def _size(value: object) -> int:
    return parse_size(value)


def _off(value: Any) -> Any:
    return "off" if isinstance(value, str) and value.strip().lower() == "off" else value


def _number(value: Any) -> Any:
    # Pydantic would take `true` for 1.
    if isinstance(value, bool):
        raise ValueError("a number was expected")
    return value


def _port(value: Any) -> Any:
    return _number(_off(value))


def _file(value: Any) -> Any:
    return value if _off(value) == "off" else expand(value, Path.home())


class ServiceOptions(BaseModel):
    """What the service does beside what stores do. Immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scrub_bytes_per_second: Annotated[int, BeforeValidator(_size), Allowed(SIZE_FORMS)] = Field(
        8 * 2**20
    )
    """How fast pages are read to check their checksums, in a second. 0: never."""

    scrub_days: Annotated[float, BeforeValidator(_number)] = Field(7.0, ge=0.001, le=3650)
    """So many days after a pass over all pages was over the next one begins."""

    status_port: Annotated[
        Literal["off"] | Annotated[int, Field(ge=0, le=65535)],
        BeforeValidator(_port),
        Allowed("off, or a port from 0 (any that is free) to 65535"),
    ] = "off"
    """The port on the loopback interface at which metrics and the status page of all processes
    are."""

    status_token_file: Annotated[
        Literal["off"] | Path, BeforeValidator(_file), Allowed("off, or a path of a file")
    ] = "off"
    """A file with the secret that whoever asks the port must name; readable by this user only."""

    drain_seconds: Annotated[float, BeforeValidator(_number)] = Field(10.0, ge=0, le=3600)
    """How long the service takes at most to end what it is doing, when it is told to stop."""

    @property
    def has_secret(self) -> bool:
        """Whether there is a port, and a file with what it asks for."""
        return self.status_port != "off" and self.status_token_file != "off"


OWN_NAMES = tuple(ServiceOptions.model_fields)
RELOADED = tuple(
    name
    for name in (*SHARED_NAMES, *OWN_NAMES)
    if name not in ("cold_dir", "status_port", "status_token_file")
)
"""What a reload changes; the others need a restart."""
