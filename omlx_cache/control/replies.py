"""Processes' replies about themselves: a frozen dataclass for each answer.

The API and the command line write answers as JSON (`serialization.py`), and read them again. Pages
are in `page_replies.py`, requests in `request_replies.py`, and statistics in `Stats`: a
command imports what it reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
        """Its title for people: its name, a server's port, and its models' last names."""
        labels = self.models or [str(self.service.get("model") or "")]
        return ", ".join(filter(None, [self.place, *map(last_name, labels)]))

    @property
    def place(self) -> str:
        """Which of several stores it is: its name, and a server's port."""
        port, name = self.service.get("port"), self.name or "store"
        if not isinstance(port, int):
            return name
        return f"{name} :{port}" + ("" if self.service.get("url") else " (loading)")


def last_name(label: str) -> str:
    """Return the last part of a model's path or name."""
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
