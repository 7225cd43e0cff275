"""Processes' replies about themselves, their pages and their requests: a frozen dataclass for each
answer, which `serialization.py` writes as JSON and reads again. Statistics are in `Stats`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from omlx_cache.requests.explanation import Explanation, RequestRecord
from omlx_cache_storage.page import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The process that answers: a store, or omlx-cached, whose role is service.

    `service` is a server's description of itself: its `url`, `port` and `model`, and more.
    """

    pid: int
    name: str
    uptime_s: float
    models: Sequence[str]
    version: str = ""
    role: str = "store"
    service: Mapping[str, object] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """For people: its name, a server's port, and its models' last names."""
        labels = self.models or [str(self.service.get("model") or "")]
        return ", ".join(filter(None, [self.place, *map(last_name, labels)]))

    @property
    def place(self) -> str:
        port, name = self.service.get("port"), self.name or "store"
        if not isinstance(port, int):
            return name
        return f"{name} :{port}" + ("" if self.service.get("url") else " (loading)")


def last_name(label: str) -> str:
    return label.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Pages in one place, and the most bytes that they may be; null without a limit."""

    pages: int
    bytes: int
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdHolding(Holding):
    """A cold tier. `state` is ok, or says what is wrong; the other fields are as in `ColdUsage`."""

    state: str
    dir: str | None
    set_by: str | None = None
    own_limit_bytes: int | None = None
    room: str = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHolding:
    """The remote store that a process uses, and how it is."""

    where: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow(Identity):
    """A process with its holdings; `versions` are the ones that its pages need."""

    versions: Mapping[str, str]
    hot: Holding
    cold: ColdHolding | None
    remote: RemoteHolding | None
    pending: Holding
    sessions: int

    @property
    def cold_dir(self) -> str | None:
        return None if self.cold is None else self.cold.dir


SHOWN_DIGITS, SHOWN_MATCHES = 16, 5
"""Of a digest or key, and of what begins alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRow:
    """Pages of one model, salt, layout and versions; `stale` is null where that is not known."""

    namespace: str
    label: str
    pages: int
    bytes: int
    tokens: int
    groups: Sequence[str]
    tiers: Sequence[str]
    created_at: str | None
    used_at: str | None
    versions: Mapping[str, str]
    salt: str
    stale: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A page: the keys and values of one block of tokens of one group of layers. `age_s` is null
    for one that is superseded and leaves first."""

    key: str
    group: str
    position: int
    tokens: int
    bytes: int
    tiers: Sequence[str]
    namespace: str
    path: str
    age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDetails(PageRow):
    """A page with its description, from its file or from memory. `error` says why there is none;
    `data` is verified, damaged, or why the file was not read, once it was checked."""

    parent: str | None = None
    tail: bool | None = None
    codec: str | None = None
    checksum: str | None = None
    data_offset: int | None = None
    tensors: Sequence[TensorSpec] = ()
    data: str | None = None
    error: str | None = None


def several(digests: Collection[str], prefix: str) -> str:
    """Return in words that several namespaces begin so."""
    shown = [digest[:SHOWN_DIGITS] for digest in sorted(digests)[:SHOWN_MATCHES]]
    more = ", ..." * (len(digests) > SHOWN_MATCHES)
    return f"{len(digests)} namespaces begin with {prefix}: {', '.join(shown)}{more}"


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A part of a log: `upto` is the number up to which it has all that is remembered."""

    upto: int
    records: Sequence[RequestRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRequest(RequestRecord):
    """A request with why no more of it was restored: `why` shows nothing of its text. `words` and
    `explanation` may; they are for this user only, and null before it was looked up."""

    pid: int
    why: str = ""
    words: str = ""
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """How much of its requests a process remembers, to explain later ones, and `since` when."""

    limit_bytes: int
    bytes: int
    since: float


@dataclass(frozen=True, slots=True)
class WhyReply:
    """The latest requests, oldest first, each with why no more of it was restored."""

    requests: Sequence[ExplainedRequest]
    history: Remembered
