"""The service's configuration: a file, below the environment, below the command line; with where
each value came from."""

import os
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from omlx_cache.settings import CacheSettings, ConfigError, SettingSource
from omlx_cache.settings.machine import expand, names_file, read_secret
from omlx_cache.settings.names import REMOVED, refusal, variable
from omlx_cache.settings.sizes import SIZE_FORMS, parse_size
from omlx_cache.settings.values import Allowed, config_error, lower, render

FILE_NAME = "omlx-cached.toml"
PREFIX = "OMLX_CACHED_"
"""Not the prefix of a store's variables: a store refuses unknown ones."""
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
"""A file or a command line that still has one is read."""


def _number(value: Any) -> Any:
    # Pydantic would take `true` for 1.
    if isinstance(value, bool):
        raise ValueError("a number was expected")
    return lower(value)


def _file(value: Any) -> Any:
    return "off" if lower(value) == "off" else expand(value, Path.home())


class ServiceOptions(BaseModel):
    """The service's own options, beside those of stores."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scrub_bytes_per_second: Annotated[int, BeforeValidator(parse_size), Allowed(SIZE_FORMS)] = (
        8 * 2**20
    )
    """Bytes a second at which pages are read to verify their checksums. 0: never."""

    scrub_days: Annotated[float, BeforeValidator(_number)] = Field(7.0, ge=0.001, le=3650)
    """Days from the end of a pass over all pages to the next pass."""

    status_port: Annotated[
        Literal["off"] | Annotated[int, Field(ge=0, le=65535)],
        BeforeValidator(_number),
        Allowed("off, or a port from 0 (any that is free) to 65535"),
    ] = "off"
    """The port of 127.0.0.1 with metrics and the status page of all processes."""

    status_token_file: Annotated[
        Literal["off"] | Path, BeforeValidator(_file), Allowed("off, or a path of a file")
    ] = "off"
    """A file with the token that clients of the port must send; only this user can read it."""

    drain_seconds: Annotated[float, BeforeValidator(_number)] = Field(10.0, ge=0, le=3600)
    """How long the service may take at most to stop."""


OWN_NAMES = tuple(ServiceOptions.model_fields)
NAMES = (*SHARED_NAMES, *OWN_NAMES)
RELOADED = {*NAMES} - {"cold_dir", "status_port", "status_token_file"}
"""The other settings need a restart."""


class Given(NamedTuple):
    """A value that a person gave: `shown`, how a person knows it, and `origin`, from where."""

    value: Any
    shown: str
    origin: str


@dataclass(frozen=True)
class ServiceConfiguration:
    """Settings that are valid, as of when they were read."""

    settings: CacheSettings
    options: ServiceOptions
    given: Mapping[str, Given]
    file: Path | None

    def sources(self) -> dict[str, dict[str, object]]:
        known = {name: source.to_dict() for name, source in self.settings.sources().items()}
        for name, value in self.options:
            known[name] = SettingSource(name, value, shown(name, value), "default").to_dict()
        origins = {"log_level": "default"} | {n: one.origin for n, one in self.given.items()}
        for name in origins.keys() & known.keys():
            origin = origins[name]
            known[name] |= {"kind": origin.partition(" ")[0], "origin": origin}
        return {name: known[name] for name in NAMES}

    def token(self) -> str | None:
        """Raises ConfigError for a file that cannot be read."""
        file = self.options.status_token_file
        if self.options.status_port == "off" or file == "off":
            return None
        return read_secret(file, "status_token_file")

    def notes(self) -> list[str]:
        """Return the values that are likely to be wrong though they are valid. Reads the disk."""
        found = self.settings.removals() + self.settings.unusable_directory()
        if self.options.status_token_file != "off" and self.options.status_port == "off":
            found.append("status_token_file has no effect: status_port is off")
        return found


def shown(name: str, value: object) -> str:
    return render("_bytes" if name == "scrub_bytes_per_second" else name, value)


def default_file(environ: Mapping[str, str], home: Path, system: str = platform.system()) -> Path:
    if system == "Darwin":
        return home / "Library" / "Application Support" / "omlx-cache" / FILE_NAME
    xdg = environ.get("XDG_CONFIG_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else home / ".config") / "omlx-cache" / FILE_NAME


def read_configuration(
    flags: Mapping[str, str], file: Path | None, environ: Mapping[str, str] = os.environ
) -> ServiceConfiguration:
    """Return the configuration; raises ConfigError with a line for each thing that is wrong.

    `file` None: the default one, if it is there. Reads the file and probes the machine.
    """
    path = file or default_file(environ, Path.home())
    troubles: list[str] = []
    said = _read(path, required=file is not None, troubles=troubles)
    given = {
        **{name: Given(value, f"{path}: {name}", f"file {path}") for name, value in said.items()},
        **_from_environment(environ, troubles),
        **{
            name: Given(value, f"--{name.replace('_', '-')}", f"flag --{name.replace('_', '-')}")
            for name, value in flags.items()
        },
    }
    shared = {name: one.value for name, one in given.items() if name not in OWN_NAMES}
    own = {name: one.value for name, one in given.items() if name in OWN_NAMES}
    settings, options = None, None
    try:
        # The directory is kept whether or not this environment's stores would use one. With whom
        # pages are shared each page's namespace says.
        known = {"log_level": "info", **shared}
        settings = CacheSettings(hot_cache_only=False, remote_architecture="own", **known)
    except ConfigError as error:
        troubles += _named(error, given)
    try:
        options = ServiceOptions(**own)
    except ValidationError as error:
        fields = ServiceOptions.model_fields
        troubles += _named(config_error(error, fields, lambda name: (name, own[name])), given)
    writes = "off" if settings is None else settings.remote_writes
    if settings is not None and settings.remote != "off" and writes in ("reused", "shared"):
        # Requests show which pages are used again and which parts prompts share, and files do not.
        troubles.append(
            f"{given['remote_writes'].shown}: got {writes!r}; allowed here: all, off. It goes by "
            "requests, and none come to the service: give it to the servers, which then send by "
            "themselves"
        )
    if troubles or settings is None or options is None:
        raise ConfigError("\n".join(troubles))
    return ServiceConfiguration(settings, options, given, path if path.exists() else None)


def _read(path: Path, *, required: bool, troubles: list[str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        troubles += [f"--config: there is no file {path}"] * required
    except (OSError, ValueError) as error:
        troubles.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    known = (*NAMES, *REMOVED_NAMES)
    for name, value in said.items():
        if name in SECRETS and not names_file(value):
            troubles.append(f"{path}: {name}: not here: file:PATH, or {variable(name)}")
        elif name not in known:
            troubles.append(f"{path}: {refusal('key', name, NAMES)}")
    return {name: value for name, value in said.items() if name in known}


def _from_environment(environ: Mapping[str, str], troubles: list[str]) -> dict[str, Given]:
    own = {PREFIX + name.upper(): name for name in OWN_NAMES}
    troubles += [
        refusal("variable", name, [*own])
        for name in sorted(environ)
        if name.upper().startswith(PREFIX) and name not in own
    ]
    shared = {variable(name): name for name in (*SHARED_NAMES, *REMOVED_NAMES)}
    return {
        setting: Given(environ[name], name, f"environment {name}")
        for name, setting in {**shared, **own}.items()
        if name in environ
    }


def _named(error: ConfigError, given: Mapping[str, Given]) -> list[str]:
    """Return the lines of a refusal, each with the name that its setting came under."""
    found = []
    # A value that may be of two kinds is refused once for each of them.
    for line in dict.fromkeys(str(error).splitlines()):
        name = line.partition(":")[0]
        found.append(given[name].shown + line[len(name) :] if name in given else line)
    return found
