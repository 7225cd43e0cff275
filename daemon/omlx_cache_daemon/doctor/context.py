"""What checks look at, each part looked up once and only if a check wants it."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from omlx_cache.control.errors import ControlError
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.names import ConfigError
from omlx_cache_daemon.doctor.census import Census, take_census
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_daemon.replies import Map, as_map
from omlx_cache_daemon.source import cold_dir_of
from omlx_cache_daemon.stores import RunningStore, running, services
from omlx_cache_daemon.titles import title
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.small_files import read_budget

ASK_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Process:
    """A store, or a service, with its answers to `ping`, `ps` and `compare`; `error` says why it
    has none."""

    store: RunningStore
    is_service: bool
    ping: Map
    ps: Map
    error: str | None
    compared: Map = field(default_factory=dict)

    @property
    def name(self) -> str:
        what = "the service" if self.is_service else title(self.ps) if self.ps else "the store"
        return f"{what} in process {self.pid}"

    @property
    def pid(self) -> int | None:
        """Its process id, as the name of its socket or it says."""
        said = self.ping.get("pid")
        return said if self.store.pid is None and isinstance(said, int) else self.store.pid

    @property
    def cold_dir(self) -> str | None:
        return cold_dir_of(self.ps)

    @property
    def version(self) -> object:
        return self.ping.get("version")


@dataclass
class Context:
    """A machine and one cold directory on it. `seconds` may be spent on reading pages."""

    directory: Path
    processes: list[Process]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    fs: FileSystem = field(default_factory=FileSystem)
    seconds: float = 2.0
    sampled: int = 0

    @cached_property
    def exists(self) -> bool:
        """True for a directory that can be looked into."""
        return self.directory.is_dir() and os.access(self.directory, os.R_OK | os.X_OK)

    @cached_property
    def census(self) -> Census:
        return self.count()

    def count(self) -> Census:
        """Count what lies in the directory now."""
        return take_census(self.directory, self.fs) if self.exists else Census()

    @property
    def users(self) -> list[Process]:
        """The stores and services that use the directory."""
        real = os.path.realpath(self.directory)
        return [process for process in self.processes if process.cold_dir == real]

    @cached_property
    def settings(self) -> CacheSettings | None:
        """What a store would have that is started here, None for settings that are refused."""
        try:
            return CacheSettings()
        except ConfigError:
            return None

    @cached_property
    def min_free_bytes(self) -> int:
        """What is to stay free on the disk: the most that anybody was told."""
        return 0 if self.settings is None else self.settings.min_free_bytes

    @cached_property
    def budget(self) -> Budget | None:
        return read_budget(self.directory, self.fs) if self.exists else None

    @property
    def named(self) -> str:
        """The option that names the directory in a command to type."""
        return f"--cold-dir {self.directory}"


def asked() -> list[Process]:
    """Return every store and service that accepts connections, with what it says."""
    known = [(store, False) for store in running()] + [(one, True) for one in services()]
    return [ask(store, is_service=is_service) for store, is_service in known]


def ask(store: RunningStore, *, is_service: bool) -> Process:
    """Return what a process says of itself; waits for some seconds at most."""
    client = store.client(ASK_SECONDS)
    try:
        ping = as_map(client.call("ping"))
        ps = as_map(client.call("ps"))
        # An earlier version does not know the question.
        with contextlib.suppress(ControlError):
            if not is_service:
                return Process(store, False, ping, ps, None, as_map(client.call("compare")))
        return Process(store, is_service, ping, ps, None)
    except (NobodyThere, ControlError, CommandError) as error:
        return Process(store, is_service, {}, {}, str(error))
