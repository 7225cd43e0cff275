"""The status of one embedded store, which its own process shows."""

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from omlx_cache.control.errors import ControlError
from omlx_cache.status.source import Document

_log = logging.getLogger(__name__)


class Shown(Protocol):
    """A store that can be lost while its status is shown. Its operations do not keep it alive: they
    raise ReferenceError then."""

    __weakref__: object

    @property
    def cold_dir(self) -> str | None: ...
    @property
    def operations(self) -> Mapping[str, Callable[[Mapping[str, object]], object]]: ...


class StoreSource:
    """What the control socket answers of a store, as a `Source`: any thread may call, nothing
    raises. Keeps no store alive: of one that is lost there is nothing to show."""

    def __init__(self, store: Shown) -> None:
        self._store = weakref.ref(store)
        self._operations = store.operations

    def processes(self) -> Sequence[Document]:
        known, stats = self._ask("ping"), self._ask("stats")
        if not isinstance(known, dict):
            return []
        store = self._store()
        return [
            {
                "pid": known.get("pid"),
                "name": known.get("name"),
                "title": title(known),
                "role": "store",
                "version": known.get("version"),
                "uptime_seconds": known.get("uptime_s"),
                "models": known.get("models"),
                "cold_dir": None if store is None else store.cold_dir,
                "stats": stats if isinstance(stats, dict) else None,
                "error": None,
            }
        ]

    def settings(self) -> Sequence[Document]:
        told = self._ask("config")
        return [{**told, "title": title(told)}] if isinstance(told, dict) else []

    def requests(self, limit: int) -> Sequence[Document]:
        known, found = self._ask("ping"), self._ask("recent", limit=limit)
        pid = known.get("pid") if isinstance(known, dict) else None
        return [{**row, "pid": pid} for row in found] if isinstance(found, list) else []

    def prefixes(
        self, namespace: str | None, parent: str | None, limit: int, *, text: bool = False
    ) -> Document:
        asked = {"namespace": namespace, "parent": parent, "limit": limit, "text": text}
        found = self._ask("prefixes", **asked)
        return found if isinstance(found, dict) else {"rows": [], "more": 0, "error": str(found)}

    def events(self, after: int | None, limit: int) -> Document:
        found = self._ask("events", after=after, limit=limit)
        return found if isinstance(found, dict) else {"events": [], "upto": 0, "dropped": 0}

    def kv_events(self, after: int | None, limit: int) -> Document:
        found = self._ask("events", after=after, limit=limit, kv=True)
        return found if isinstance(found, dict) else {"batches": [], "upto": 0, "dropped": 0}

    def lookup(
        self, namespace: str | None, keys: Sequence[str] | None, model: str | None
    ) -> Document:
        asked = {"namespace": namespace, "model": model}
        found = self._ask("lookup", **asked, keys=None if keys is None else list(keys))
        return found if isinstance(found, dict) else {"error": str(found)}

    def _ask(self, name: str, **arguments: object) -> object:
        """Return an operation's answer, in words why there is none."""
        operation = self._operations.get(name)
        if self._store() is None:
            return "the store is gone"
        if operation is None:
            return f"this version has no operation {name}"
        try:
            return operation(arguments)
        except ReferenceError:
            return "the store is gone"
        except ControlError as error:
            return str(error)
        except Exception as error:
            _log.debug("status: %s failed", name, exc_info=True)
            return f"{type(error).__name__}: {error}"


def title(known: Mapping[str, object]) -> str:
    """Return what a store is called for people, from its answer to `ping`: its name, the port of a
    server, and its models."""
    service, labels = known.get("service"), known.get("models")
    port = service.get("port") if isinstance(service, dict) else None
    name = str(known.get("name") or "store") + (f" :{port}" if isinstance(port, int) else "")
    named = (
        [str(label).rstrip("/").rpartition("/")[2] for label in labels or ()]
        if isinstance(labels, list)
        else []
    )
    return ", ".join([name, *named])
