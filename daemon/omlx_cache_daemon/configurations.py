"""The settings of a running store, and of one that would be started in this shell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omlx_cache.control.errors import ControlError
from omlx_cache.settings.names import ConfigError
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.replies import Map, as_map
from omlx_cache_daemon.stores import RunningStore
from omlx_cache_daemon.titles import service_of, title

_DEFAULT_OF_SERVER = "default of serve"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings by name, each with `value`, `rendered`, `kind` and `origin`.

    `process` says whose they are, None for this shell's. `here` has those that this shell would
    make something else of, as it would have them.
    """

    settings: Mapping[str, Map]
    notes: Sequence[object]
    process: Mapping[str, object] | None = None
    here: Mapping[str, Map] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {
            "process": self.process,
            "settings": self.settings,
            "here": self.here,
            "notes": self.notes,
        }


def of_shell() -> Configuration:
    """Return what a store that is started here would have; raises ConfigError."""
    from omlx_cache.settings import CacheSettings

    settings = CacheSettings()
    known = {name: source.to_dict() for name, source in settings.sources().items()}
    return Configuration(known, settings.notes())


def of_store(store: RunningStore, timeout: float) -> Configuration:
    """Return what a running store has, and where this shell differs; raises CommandError."""
    try:
        reply = as_map(store.client(timeout).call("config"))
    except ControlError as error:
        if error.code != "not_found":
            raise
        raise CommandError(
            f"the store in process {store.pid} is of a version that does not tell its settings; "
            "--here shows this shell's"
        ) from error
    theirs = {name: as_map(setting) for name, setting in as_map(reply.get("settings")).items()}
    flags = service_of(reply).get("flags")
    if isinstance(flags, list):
        theirs = {name: _of_server(name, setting, flags) for name, setting in theirs.items()}
    notes = reply.get("notes")
    said = list(notes) if isinstance(notes, list) else []
    here: dict[str, Map] = {}
    try:
        here = _differing(theirs, of_shell().settings)
    except ConfigError as error:
        said.append(f"a store cannot be started here: {error}")
    process = {"pid": reply.get("pid"), "title": title(reply), "socket": str(store.path)}
    return Configuration(theirs, said, process, here)


def _of_server(name: str, setting: Map, flags: Sequence[object]) -> Map:
    """Return a setting with the origin that a person knows: a server's arguments are flags."""
    if setting.get("origin") != "argument":
        return setting
    flag = f"flag --{name.replace('_', '-')}"
    return {**setting, "origin": flag if name in flags else _DEFAULT_OF_SERVER}


def _differing(theirs: Mapping[str, Map], ours: Mapping[str, Map]) -> dict[str, Map]:
    return {
        name: ours[name]
        for name, setting in theirs.items()
        if name in ours and not _agree(name, setting, ours[name])
    }


def _agree(name: str, theirs: Map, ours: Map) -> bool:
    if theirs.get("value") == ours["value"]:
        return True
    if theirs.get("origin") == _DEFAULT_OF_SERVER:
        return ours["kind"] == "default"
    # A share of what is free on the disk is another one each time.
    return name == "cold_bytes" and theirs.get("kind") == ours["kind"] == "derived"
