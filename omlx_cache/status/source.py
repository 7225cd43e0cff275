"""What the status port shows: one store, or every process of a machine. Plain values only, so that
a process can answer for itself and a service for all."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

MOST_KEYS = 100
"""How many block keys a look-up takes: what a request's line has room for. A longer prompt is asked
about by every n-th key."""

Document = Mapping[str, object]
"""What JSON has: texts, numbers, lists and maps."""


@runtime_checkable
class KvSource(Protocol):
    """A source of one store, which a router can follow."""

    def kv_events(self, after: int | None, limit: int) -> Document:
        """Return events as `Source.events` does, as `batches` for a prefix-aware router."""


@runtime_checkable
class LookupSource(Protocol):
    """A source of one store, which a router can ask what it has of a prompt."""

    def lookup(
        self, namespace: str | None, keys: Sequence[str] | None, model: str | None
    ) -> Document:
        """Return how much of a chain can be restored, or without keys the namespaces; with an
        `error` where that cannot be told."""


class Source(Protocol):
    """Any thread may call; nothing raises, and nothing waits for a process longer than a second.

    A process that does not answer is in `processes` with its `error`, and missing elsewhere.
    """

    def processes(self) -> Sequence[Document]:
        """Return each process: `pid`, `name`, `title`, `role` (`store` or `service`), `version`,
        `uptime_seconds`, `models`, `cold_dir`, `stats` (as `Stats.to_dict`), `error` (None or why
        it does not answer)."""

    def settings(self) -> Sequence[Document]:
        """Return each process's settings with their origins, as the operation `config` does."""

    def requests(self, limit: int) -> Sequence[Document]:
        """Return the latest requests, newest first, each with its `pid` and its `why`."""

    def prefixes(
        self, namespace: str | None, parent: str | None, limit: int, *, text: bool = False
    ) -> Document:
        """Return a level of the tree of cached prefixes: the namespaces, the roots of one, or what
        follows the block `parent`; `text` asks for what it says, where the process remembers."""

    def events(self, after: int | None, limit: int) -> Document:
        """Return events beyond the number `after`, `upto` for the next question, and `dropped`."""
