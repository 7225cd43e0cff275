"""The service's configuration: a file, below the environment, below the command line; with where
each value came from."""

import os
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from omlx_cache.settings import CacheSettings, ConfigError, SettingSource
from omlx_cache.settings.machine import names_file
from omlx_cache.settings.names import refusal, variable
from omlx_cache.settings.values import config_error, render
from omlx_cache_daemon.service.options import (
    OWN_NAMES,
    PREFIX,
    REMOVED_NAMES,
    SECRETS,
    SHARED_NAMES,
    ServiceOptions,
)
from omlx_cache_storage.remote.address import names_password

NAMES = (*SHARED_NAMES, *OWN_NAMES)
FILE_NAME = "omlx-cached.toml"


class Given(NamedTuple):
    """A value that somebody gave: `shown`, how a person knows it, and `origin`, from where."""

    value: Any
    shown: str
    origin: str


@dataclass(frozen=True)
class Configuration:
    """Settings that are valid, as of when they were read."""

    settings: CacheSettings
    options: ServiceOptions
    given: Mapping[str, Given]
    file: Path | None

    def sources(self) -> dict[str, dict[str, object]]:
        """Return every setting as plain values, with its origin."""
        stores = self.settings.sources()
        found = {}
        for name in NAMES:
            value = getattr(self.options if name in OWN_NAMES else self.settings, name)
            source = SettingSource(name, value, shown(name, value), "default")
            if name not in self.given and name in SHARED_NAMES and name != "log_level":
                source = stores[name]
            found[name] = source.to_dict()
            if name in self.given:
                origin = self.given[name].origin
                found[name] |= {"kind": origin.partition(" ")[0], "origin": origin}
        return found

    def notes(self) -> list[str]:
        """Return what is likely to be wrong though it is valid. Reads the disk."""
        found = self.settings.removals() + self.settings.unusable_directory()
        if self.options.status_token_file != "off" and self.options.status_port == "off":
            found.append("status_token_file has no effect: status_port is off")
        return found


def shown(name: str, value: object) -> str:
    """Return a setting's value as it could be given again."""
    return render("_bytes" if name == "scrub_bytes_per_second" else name, value)


def default_file(environ: Mapping[str, str], home: Path, system: str = platform.system()) -> Path:
    """Return where the file lies unless it is named; it need not exist."""
    if system == "Darwin":
        return home / "Library" / "Application Support" / "omlx-cache" / FILE_NAME
    xdg = environ.get("XDG_CONFIG_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else home / ".config") / "omlx-cache" / FILE_NAME


def read_configuration(
    flags: Mapping[str, str], file: Path | None, environ: Mapping[str, str] = os.environ
) -> Configuration:
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
    settings = _settings(given, troubles)
    options = _options(given, troubles)
    if names_password(flags.get("remote", "")):
        troubles.append("--remote: everybody sees flags: say remote_password=file:PATH instead")
    troubles += [
        f"--{name.replace('_', '-')}: everybody sees flags: file:PATH, or {variable(name)}"
        for name in SECRETS
        if name in flags and not names_file(flags[name])
    ]
    if settings is not None and settings.has_remote and settings.remote_writes == "shared":
        # Requests show what prompts have in common, and files do not.
        name = given["remote_writes"].shown if "remote_writes" in given else "remote_writes"
        troubles.append(
            f"{name}: got 'shared'; allowed here: all, reused, off. It goes by requests, and none "
            "come to the service: give it to the servers, which then send by themselves"
        )
    if troubles or settings is None or options is None:
        raise ConfigError("\n".join(troubles))
    return Configuration(settings, options, given, path if path.exists() else None)


def _read(path: Path, *, required: bool, troubles: list[str]) -> dict[str, Any]:
    """Return what the file says of settings that exist."""
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            troubles.append(f"--config: there is no file {path}")
        return {}
    except OSError as error:
        troubles.append(f"{path}: {error.strerror}")
        return {}
    except ValueError as error:
        troubles.append(f"{path}: {error}")
        return {}
    known = [*NAMES, *REMOVED_NAMES]
    for name in said:
        if name in SECRETS and not names_file(said[name]):
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


def _settings(given: Mapping[str, Given], troubles: list[str]) -> CacheSettings | None:
    """Return a store's settings, of which the shared ones count here."""
    names = (*SHARED_NAMES, *REMOVED_NAMES)
    arguments = {name: given[name].value for name in names if name in given}
    arguments.setdefault("log_level", "info")
    try:
        # The directory is kept whether or not this environment's stores would use one.
        # With whom pages are shared each page's namespace says.
        return CacheSettings(hot_cache_only=False, remote_architecture="own", **arguments)
    except ConfigError as error:
        for line in str(error).splitlines():
            name = line.partition(":")[0]
            known = given.get(name)
            troubles.append(line if known is None else known.shown + line[len(name) :])
        return None


def _options(given: Mapping[str, Given], troubles: list[str]) -> ServiceOptions | None:
    mine = {name: given[name] for name in OWN_NAMES if name in given}
    try:
        return ServiceOptions(**{name: one.value for name, one in mine.items()})
    except ValidationError as error:
        fields = ServiceOptions.model_fields
        refused = config_error(error, fields, lambda name: (mine[name].shown, mine[name].value))
        # A value that may be of two kinds is refused once for each of them.
        troubles += dict.fromkeys(str(refused).splitlines())
        return None
