"""What checks find and look at, and their runner: each has its time, and one that fails itself is a
finding."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

from omlx_cache.control.cold_files import ROOT_FILES, root_bytes
from omlx_cache.control.errors import ControlError
from omlx_cache.control.listing import Footprint
from omlx_cache.control.replies import ProcessRow, RecordPage
from omlx_cache.requests.explanation import RequestRecord
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.names import SETTING_NAMES, ConfigError, refuse_unknown
from omlx_cache.settings.sizes import SMALLEST_COLD_BYTES
from omlx_cache_daemon.checking import Checked
from omlx_cache_daemon.client import Client, Map, as_answer, as_map, count_of
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.quotas import described
from omlx_cache_daemon.stores import running, services
from omlx_cache_storage.cold.catalog import (
    DESCRIPTIONS,
    digest_of,
    namespace_directories,
    shard_directories,
    take_inventory,
)
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.small_files import Budget, read_budget
from omlx_cache_storage.format.names import ENTRY_BYTES, parse_name
from omlx_cache_storage.io_threads import within
from omlx_cache_storage.keys import BlockKey

# `omlx-cache move` of earlier versions leaves it in a copy when it is interrupted at its end.
_DOCUMENTS = {*ROOT_FILES, "moving.json"}
SET_ASIDE = ".unreadable"


@dataclass(slots=True)
class Census:
    """Pages and their bytes, in all and by namespace, the tokens whose keys and values these have
    (of a namespace's largest layer group), and the latest time of one; files that dead
    writers `left` and how many others are `writing`; what stores pass over (`ignored`), what is no
    cache's (`foreign`) and shards without anything in them (`empty`)."""

    pages: int = 0
    nbytes: int = 0
    by_namespace: Counter[BlockKey] = field(default_factory=Counter)
    tokens: Counter[BlockKey] = field(default_factory=Counter)
    latest_ns: int = 0
    writing: int = 0
    left: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def take_census(directory: Path, fs: FileSystem) -> Census:
    """Count what lies in a directory without opening a file; raises OSError."""
    known = take_inventory(directory, fs)
    census = Census(len(known.pages), writing=len(known.under_way))
    used = Footprint(root_bytes(directory, fs))
    held = Counter[tuple[BlockKey, str]]()
    for page, time_ns in known.pages:
        used.add(page.namespace, page.name.id.key, page.nbytes)
        group = page.namespace, page.name.id.group
        held[group] += page.name.held
        census.tokens[page.namespace] = max(census.tokens[page.namespace], held[group])
        census.by_namespace[page.namespace] += page.nbytes + ENTRY_BYTES
        census.latest_ns = max(census.latest_ns, time_ns)
    census.nbytes = used.nbytes
    census.left, census.ignored = known.useless, known.ignored
    census.foreign = [entry.path for entry in fs.scan(directory) if not _is_known(entry.name)]
    for _, namespace in namespace_directories(directory, fs):
        census.foreign += [
            entry.path
            for entry in fs.scan(namespace)
            if len(entry.name) != 2 and entry.name not in DESCRIPTIONS and entry.name[0] != "."
        ]
        for shard in shard_directories(namespace, fs):
            names = [entry.name for entry in fs.scan(shard)]
            if not names:
                census.empty.append(shard)
            census.foreign += [
                os.path.join(shard, name)
                for name in names
                if name[0] != "."
                and not (parse_name(name) and name.startswith(os.path.basename(shard)))
            ]
    return census


def _is_known(name: str) -> bool:
    """True for what is a cache's beside its namespaces, for a namespace, and for hidden files."""
    return (
        name.removesuffix(SET_ASIDE) in _DOCUMENTS
        or name.startswith(".")
        or digest_of(name) is not None
    )


ASK_SECONDS = 3.0
CHECK_SECONDS = 120.0
"""A check that takes longer waits for a disk that does not answer."""
_THREAD = "omlx-cache-doctor"

Severity = Literal["error", "warning", "note"]
"""`error`: the cache does not work as it should. `warning`: it may soon, or works worse. `note`:
worth knowing, and nothing to worry about."""


@dataclass(slots=True)
class Finding:
    """One thing that is not as it might be. `remedy` is a command to type, or what to do. `fix`
    does it where that is safe, and returns what it did; raises OSError, CommandError. `fixed` says
    so afterwards, `failed` why it could not. `files` names each file that it is about."""

    severity: Severity
    found: str
    meaning: str
    remedy: str
    fix: Callable[[], str] | None = None
    files: Sequence[str] = ()
    check: str = ""
    fixed: str | None = None
    failed: str | None = None

    def to_dict(self) -> dict[str, object]:
        return {
            "check": self.check,
            "severity": self.severity,
            "found": self.found,
            "meaning": self.meaning,
            "remedy": self.remedy,
            "files": list(self.files),
            "can_fix": self.fix is not None,
            "fixed": self.fixed,
            "failed": self.failed,
        }

    def mend(self) -> None:
        """Raises nothing that a fix does."""
        if self.fix is not None:
            try:
                self.fixed = self.fix()
            except Exception as error:
                self.failed = f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class AskedProcess:
    """A store, or a service, with what it says of itself; `error` says why that is nothing.
    `unbacked`: pages that its memory takes for written, and the disk does not have. Its `stats` and
    `settings`, by name, and `requests`, the latest, are empty where it does not know the question.
    """

    store: Client
    row: ProcessRow | None = None
    unbacked: int = 0
    error: str | None = None
    stats: Map = field(default_factory=dict)
    settings: Map = field(default_factory=dict)
    requests: Sequence[RequestRecord] = ()

    def part(self, name: str) -> Map:
        return as_map(self.stats.get(name) or {})

    @property
    def pid(self) -> int | None:
        return self.store.pid if self.row is None else self.row.pid

    @property
    def cold_dir(self) -> str | None:
        told = None if self.row is None else self.row.cold_dir
        return None if told is None else os.path.realpath(told)

    def __str__(self) -> str:
        return (
            f"{'a store or service' if self.row is None else self.row.title} in process {self.pid}"
        )


def asked() -> list[AskedProcess]:
    return [ask(store) for store in (*running(), *services())]


def ask(store: Client) -> AskedProcess:
    """Return what a process says of itself; waits for some seconds at most."""
    client = store.within(ASK_SECONDS)
    told: dict[str, Any] = {}
    try:
        row = client.process()
        # An earlier version does not know the question.
        with contextlib.suppress(ControlError, KeyError):
            told["settings"] = as_map(as_map(client.call("config"))["settings"])
        # A service, and an earlier version, do not know the question.
        with contextlib.suppress(ControlError):
            told["unbacked"] = count_of(as_map(client.call("compare")), "unbacked")
            told["stats"] = as_map(client.call("stats"))
            told["requests"] = as_answer(RecordPage, client.call("requests", after=0)).records
    except (CommandError, ControlError) as error:
        return AskedProcess(store, error=str(error))
    return AskedProcess(store, row, **told)


@dataclass
class Context:
    """A machine and one cold directory on it, each part looked up once and only if a check wants
    it. Pages are read for `seconds`; `read` is how many were, `wrong` those in trouble. `census`
    is of a directory that `exists`."""

    directory: Path
    processes: list[AskedProcess] = field(default_factory=list)
    fs: FileSystem = field(default_factory=FileSystem)
    seconds: float = 2.0
    read: int = 0
    wrong: list[Checked] = field(default_factory=list)

    census: Census = field(default_factory=Census)

    @cached_property
    def exists(self) -> bool:
        """True for a directory that can be looked into, and whose disk answers."""
        return within(self._take_census, _THREAD, CHECK_SECONDS, False)

    def _take_census(self) -> bool:
        is_open = self.directory.is_dir() and os.access(self.directory, os.R_OK | os.X_OK)
        with contextlib.suppress(OSError):
            self.census = take_census(self.directory, self.fs) if is_open else Census()
            return is_open
        return False

    @property
    def users(self) -> list[AskedProcess]:
        return [one for one in self.processes if one.cold_dir == os.path.realpath(self.directory)]

    @cached_property
    def misspelt(self) -> list[str]:
        try:
            refuse_unknown(SETTING_NAMES, (), os.environ)
        except ConfigError as error:
            return str(error).splitlines()
        return []

    @cached_property
    def settings(self) -> CacheSettings | ConfigError:
        """What a store would have that is started here, or why none can be. A directory's budget
        counts before a share of the free space."""
        try:
            known = CacheSettings()
            nbytes = 0 if self.budget is None else self.budget.nbytes
            is_ours = known.hot_cache_only or not known.is_derived("cold_bytes")
            # A budget without room is a finding of its own: no setting of this shell is to blame.
            if is_ours or nbytes < SMALLEST_COLD_BYTES:
                return known
            return CacheSettings(cold_bytes=nbytes)
        except ConfigError as error:
            return error

    @property
    def min_free(self) -> int:
        """The bytes to leave free on the directory's disk: those of its users, else those of a
        store that is started here on it."""
        known = [
            count_of(as_map(user.settings["min_free_bytes"]), "value")
            for user in self.users
            if "min_free_bytes" in user.settings
        ]
        if not known:
            with contextlib.suppress(ConfigError):
                known = [CacheSettings(cold_dir=self.directory).min_free_bytes]
        return max(known, default=0)

    @property
    def place(self) -> Path:
        return next(one for one in (self.directory, *self.directory.parents) if one.exists())

    @property
    def spare_bytes(self) -> int:
        """Negative where the disk lacks some of the bytes to leave free."""
        return self.fs.free_bytes(self.place) - self.min_free

    @property
    def room_bytes(self) -> int:
        """The bytes that the cache can hold on its disk, beside what file systems add to files."""
        return (self.census.nbytes + self.spare_bytes) * 99 // 100

    @property
    def lacks_files(self) -> bool:
        """True when the disk has hardly a file (inode) left, as far as it counts them."""
        spare = self.fs.spare_files(self.place)
        return spare is not None and spare <= 0

    @cached_property
    def budget(self) -> Budget | None:
        return read_budget(self.directory, self.fs) if self.exists else None

    @cached_property
    def quota(self) -> Map:
        """What `omlx-cache quota` shows; lists the directory's pages."""
        return described(self.directory)

    @property
    def freeing(self) -> str:
        """What to do for more room on the directory's disk."""
        return (
            f"free room on the disk: du -axh {self.fs.mount_point(self.place)} | grep -vF "
            f"{self.directory}/ | sort -h | tail"
        )

    @property
    def option(self) -> str:
        return f"--cold-dir {self.directory}"


Check = Callable[[Context], Iterator[Finding]]


def name_of(check: Check) -> str:
    return check.__name__.replace("_", " ")


def examine(context: Context, checks: Iterable[Check]) -> list[Finding]:
    """Run checks, each for `CHECK_SECONDS` at most, and return what they found; raises nothing that
    a check does. After one that does not end no other is run: it would wait for the same disk."""
    found: list[Finding] = []
    for check in checks:
        seconds = CHECK_SECONDS + context.seconds
        late = _unknown(check, f"did not end within {seconds:g} s: the disk does not answer")
        try:
            results = within(partial(list, check(context)), _THREAD, seconds, [late])
        except Exception as error:
            results = [_unknown(check, f"failed itself: {type(error).__name__}: {error}")]
        for finding in results:
            finding.check = name_of(check)
        found += results
        if late in results:
            break
    return found


def _unknown(check: Check, why: str) -> Finding:
    return Finding(
        "warning",
        f"the check {name_of(check)!r} {why}",
        "what it looks for is not known",
        "try again; if it stays so, report it with this line",
    )


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: get_args(Severity).index(finding.severity))
