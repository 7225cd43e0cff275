"""A remote store in memory, which several machines may use, with faults that a test switches on."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from omlx_cache_storage.errors import Trouble
from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.engine import Part, RemoteError

_HANGS_AT_MOST = 60.0


class MemoryStore:
    """Values by name, in parts, and sets: what engines of several machines have in common.

    `lock` guards both.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, list[bytes]] = {}
        self.sets: dict[str, list[str]] = {}

    def change(self, name: str, changed: Callable[[bytes], bytes]) -> None:
        """Change a value's first part, as damage or an attacker would."""
        with self.lock:
            parts = self.values[name]
            self.values[name] = [changed(parts[0]), *parts[1:]]

    def evict(self, *fragments: str) -> int:
        """Forget the values whose names have one of the fragments in them; return how many."""
        with self.lock:
            gone = [n for n in self.values if any(fragment in n for fragment in fragments)]
            for name in gone:
                del self.values[name]
        return len(gone)


class MemoryEngine:
    """One machine's way to a store.

    `fail[operation]` is what is raised instead ("*" for all of them); `hanging(operation)` lets
    calls hang until it ends, or the engine is closed, as the network of a half-open connection
    does; `each[operation]` is called with the arguments first. `calls` counts operations, `phases`
    how often it was asked or read from, `names` all names that `look` was asked for. `reached` says
    that a call hangs.
    """

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        part_bytes: int | None = 8 << 20,
        asks_together: int = 1 << 20,
    ) -> None:
        self.store = MemoryStore() if store is None else store
        self.part_bytes = part_bytes
        self.asks_together = asks_together
        self.fail: dict[str, Trouble] = {}
        self.each: dict[str, Callable[..., object]] = {}
        self.calls: Counter[str] = Counter()
        self.phases = 0
        self.names: list[str] = []
        self.reached = threading.Event()
        self._gates: dict[str, threading.Event] = {}
        self.closed = threading.Event()

    @contextlib.contextmanager
    def hanging(self, *operations: str) -> Iterator[None]:
        """Let calls of operations hang for as long as the block lasts."""
        gates = {operation: threading.Event() for operation in operations}
        self._gates |= gates
        try:
            yield
        finally:
            for operation, gate in gates.items():
                self._gates.pop(operation, None)
                gate.set()

    def _enter(self, operation: str, *arguments: object) -> None:
        self.calls[operation] += 1
        if (called := self.each.get(operation)) is not None:
            called(*arguments)
        gate = self._gates.get(operation) or self._gates.get("*")
        if gate is not None:
            self.reached.set()
            gate.wait(_HANGS_AT_MOST)
        if self.closed.is_set():
            raise RemoteError("lost", "the connection was closed")
        reason = self.fail.get(operation) or self.fail.get("*")
        if reason is not None:
            raise RemoteError(reason, f"{operation} is made to fail")

    def ping(self) -> None:
        self._enter("ping")

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        self.phases += 1
        self.names += [*names, *sets]
        self._enter("look", names, sets)
        with self.store.lock:
            values = self.store.values
            found = [values.get(name) for name in names]
            heads = [None if one is None else b"".join(one)[:nbytes] for one in found]
            return heads, [list(self.store.sets.get(name, ())) for name in sets]

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        self.phases += 1
        self._enter("read", parts)
        with self.store.lock:
            found = [self._part(part) for part in parts]
        return list(found)

    def _part(self, part: Part) -> bytes | None:
        parts = self.store.values.get(part.name)
        if parts is None:
            return None
        if self.part_bytes is None:
            return parts[0][part.offset : part.offset + part.nbytes]
        return parts[part.number] if part.number < len(parts) else None

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        self._enter("write", name, parts)
        value = [b"".join(map(bytes, pieces)) for pieces in parts]
        if self.part_bytes is None:
            value = [b"".join(value)]
        with self.store.lock:
            if not replace and name in self.store.values:
                return False
            self.store.values[name] = value
        return True

    def add(self, set_name: str, member: str) -> None:
        self._enter("add", set_name, member)
        with self.store.lock:
            members = self.store.sets.setdefault(set_name, [])
            if member not in members:
                members.append(member)

    def delete(self, names: Sequence[str]) -> int:
        self._enter("delete", names)
        with self.store.lock:
            return sum(self.store.values.pop(name, None) is not None for name in names)

    def close(self) -> None:
        self.closed.set()
        for gate in list(self._gates.values()):
            gate.set()
