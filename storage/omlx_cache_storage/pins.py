"""Pins: pages that are not evicted until a time, since a user knows of requests to come.

A pin names pages, later ones too: of a namespace, a model or a salt, or of one chain from its root
to a block. It lies in the directory's `pins.json`, for all processes.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from omlx_cache_storage.documents import label
from omlx_cache_storage.keys import BlockKey


class Pinned(NamedTuple):
    found_pages: int
    pages: int
    nbytes: int


class PinnedPages(NamedTuple):
    """A pin, None where there was no room for another one, and what each tier had for it when it
    began, memory first."""

    pin: "PinRecord | None"
    tiers: Sequence[Pinned]


SHARE: Final = 2
"""Pins take at most 1/2 of a tier's bytes, so that the other half stays a cache."""
MOST_KEYS: Final = 50_000
"""Blocks that all pins name together: what `pins.json` has room for, and some more."""
FOREVER_NS: Final = 1 << 62

PinKind = Literal["namespace", "model", "salt", "key"]


@dataclass(frozen=True, slots=True)
class PinRecord:
    """Pages that stay from a time to another (nanoseconds since the epoch; None: until unpinned).

    `name` is a namespace's digest or a block's key in hex, a model as listings name it, or a salt's
    digest as documents have it. For a block, `keys` are its chain, the root first; they do not tell
    it from other pins.
    """

    kind: PinKind
    name: str
    since_ns: int
    until_ns: int | None = None
    namespace: BlockKey | None = None
    keys: tuple[BlockKey, ...] = field(default=(), compare=False)

    @property
    def end_ns(self) -> int:
        return FOREVER_NS if self.until_ns is None else self.until_ns

    @property
    def target(self) -> tuple[PinKind, str, BlockKey | None]:
        return self.kind, self.name, self.namespace


def living(pins: Iterable[PinRecord], now_ns: int) -> tuple[PinRecord, ...]:
    return tuple(pin for pin in pins if pin.end_ns > now_ns)


class Pins:
    """Knows a store's pins: those in the directory's file, and those that this process has added.

    Any thread may call. `_lock` guards `_filed` (what the file says, or is to say), `_own` (this
    process's pins, several for one target), `_written` (pins that the file has had), `_known`
    (namespaces whose documents were read), `is_unwritten` and `version` (rises with each change,
    0 before the first pin).
    `until` and `chain_until` take no lock: `_keys` and `_namespaces` are replaced, and entries of
    theirs only added. `merged`, `go_by` and `learn` belong to one thread.
    """

    def __init__(
        self, document_of: Callable[[BlockKey], Mapping[str, object]] = lambda _: {}
    ) -> None:
        self._document_of = document_of
        self._lock = threading.Lock()
        self._filed: tuple[PinRecord, ...] = ()
        self._own: list[PinRecord] = []
        self._written: set[PinRecord] = set()
        self._known: set[BlockKey] = set()
        self._keys: dict[BlockKey, dict[BlockKey, int]] = {}
        self._namespaces: dict[BlockKey, int] = {}
        self.is_unwritten = False
        self.version = 0

    @property
    def end_ns(self) -> int:
        with self._lock:
            return min((pin.end_ns for pin in self._records()), default=FOREVER_NS)

    @property
    def namespaces(self) -> set[BlockKey]:
        return {*self._namespaces, *self._keys}

    def add(self, pin: PinRecord) -> bool:
        """Begin a pin of this process, at once; False when all pins would name more than
        `MOST_KEYS` blocks."""
        with self._lock:
            self._expire(pin.since_ns)
            chains = {one.target: one.keys for one in self._records()}
            if sum(map(len, {**chains, pin.target: pin.keys}.values())) > MOST_KEYS:
                return False
            # One chain for all of a target: a server may pin its prompt with each request.
            self._own.append(replace(pin, keys=chains.get(pin.target, pin.keys)))
            _take(pin, self._namespaces, self._keys)
            self.is_unwritten = True
            self.version += 1
            return True

    def remove(self, pin: PinRecord) -> None:
        with self._lock:
            if pin in self._own:
                self._own.remove(pin)
                self._filed = tuple(one for one in self._filed if one != pin)
                self.is_unwritten = True
                self._count()

    def merged(self, filed: Iterable[PinRecord], now_ns: int) -> tuple[PinRecord, ...]:
        """Return the pins for a file that says `filed`: without ended pins, and with this
        process's. Of several for one target the last to end counts. A pin that another process took
        out of the file has ended."""
        with self._lock:
            self.is_unwritten = False
            left = living(filed, now_ns)
            ended = {pin.target for pin in self._written.difference(left)}
            self._own = [pin for pin in self._own if pin.target not in ended]
            self._expire(now_ns)
            latest = {
                pin.target: pin for pin in sorted(self._own, key=lambda pin: pin.end_ns)
            }.values()
            kept = (pin for pin in left if pin not in self._written or pin in latest)
            return tuple(dict.fromkeys((*kept, *latest)))

    def go_by(
        self, pins: tuple[PinRecord, ...], filed: Iterable[PinRecord], *, again: bool = False
    ) -> None:
        """Have the pins that `merged` returned, of which the file says `filed` by now; `again`: it
        is to be changed still."""
        with self._lock:
            self._written = self._written.union(self._own).intersection(filed)
            self.is_unwritten |= again
            if pins != self._filed:
                self._filed = pins
                self._count()

    def learn(self, namespaces: Iterable[BlockKey]) -> None:
        """Find out which pins mean new namespaces. Reads a namespace's document once, and only when
        a pin names a model or a salt; one that is being written is asked for again."""
        pins = [pin for pin in self._filed if pin.kind in ("model", "salt")]
        for namespace in namespaces if pins else ():
            document = {} if namespace in self._known else self._document_of(namespace)
            if document:
                with self._lock:
                    self._known.add(namespace)
                    ends = [pin.end_ns for pin in pins if _means(pin, document)]
                    _later(self._namespaces, [namespace] if ends else [], max(ends, default=0))
                    self.version += bool(ends)

    def until(self, namespace: BlockKey, key: BlockKey) -> int:
        return max(self.chain_until(namespace, key), self._namespaces.get(namespace, 0))

    def chain_until(self, namespace: BlockKey, key: BlockKey) -> int:
        """Return until when a chain's pin keeps a page in memory. A pin of a whole model does not
        count: its first pages would keep half of memory from being a cache."""
        of_chain = self._keys.get(namespace)
        return 0 if of_chain is None else of_chain.get(key, 0)

    def _records(self) -> tuple[PinRecord, ...]:
        return tuple(dict.fromkeys((*self._filed, *self._own)))

    def _expire(self, now_ns: int) -> None:
        own = list(living(self._own, now_ns))
        if own != self._own:
            self._own = own
            self._count()

    def _count(self) -> None:
        namespaces: dict[BlockKey, int] = {}
        keys: dict[BlockKey, dict[BlockKey, int]] = {}
        for pin in self._records():
            _take(pin, namespaces, keys)
        self._namespaces, self._keys = namespaces, keys
        self._known.clear()
        self.version += 1


def _take(
    pin: PinRecord,
    namespaces: dict[BlockKey, int],
    keys: dict[BlockKey, dict[BlockKey, int]],
) -> None:
    if pin.kind == "namespace":
        _later(namespaces, [BlockKey(bytes.fromhex(pin.name))], pin.end_ns)
    elif pin.namespace is not None:
        _later(keys.setdefault(pin.namespace, {}), pin.keys, pin.end_ns)


def _later(ends: dict[BlockKey, int], names: Iterable[BlockKey], end_ns: int) -> None:
    for name in names:
        ends[name] = max(end_ns, ends.get(name, 0))


def _means(pin: PinRecord, document: Mapping[str, object]) -> bool:
    return pin.name == (label(document) if pin.kind == "model" else document.get("salt"))
