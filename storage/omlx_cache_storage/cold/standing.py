"""What the pins of a directory want: which of its pages stay, and until when."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from omlx_cache_storage.cold.pin import DirectoryPin
from omlx_cache_storage.documents import label
from omlx_cache_storage.keys import BlockKey


class _Wanted(NamedTuple):
    """Ends of pins: of whole namespaces, and of blocks in others."""

    namespaces: Mapping[BlockKey, int]
    keys: Mapping[BlockKey, Mapping[BlockKey, int]]


_NOTHING = _Wanted({}, {})


class Standing:
    """Knows the pins of a directory; reads a namespace's document once, and only when a pin names a
    model or a salt.

    One thread at a time calls what changes it; any thread may ask `until`, whose answer comes from
    `_wanted`, which is replaced and never changed.
    """

    def __init__(self, document_of: Callable[[BlockKey], Mapping[str, object]]) -> None:
        self._document_of = document_of
        self.go_by(())

    def go_by(self, pins: Iterable[DirectoryPin]) -> None:
        """Have other pins; `learn` tells which namespaces they mean."""
        self.pins = tuple(pins)
        self._by_document = [pin for pin in self.pins if pin.kind in ("model", "salt")]
        self._known: set[BlockKey] = set()
        self._wanted = _NOTHING
        namespaces: dict[BlockKey, int] = {}
        keys: dict[BlockKey, dict[BlockKey, int]] = {}
        for pin in self.pins:
            if pin.kind == "namespace":
                _later(namespaces, [BlockKey(bytes.fromhex(pin.name))], pin.end_ns)
            elif pin.namespace is not None:
                _later(keys.setdefault(pin.namespace, {}), pin.keys, pin.end_ns)
        self._wanted = _Wanted(namespaces, keys)

    def __bool__(self) -> bool:
        return bool(self.pins)

    @property
    def end_ns(self) -> int | None:
        """When the first of the pins ends, None without any."""
        return min((pin.end_ns for pin in self.pins), default=None)

    @property
    def namespaces(self) -> set[BlockKey]:
        """The namespaces in which something is to stay, as far as they are known."""
        return {*self._wanted.namespaces, *self._wanted.keys}

    def learn(self, namespaces: Iterable[BlockKey]) -> bool:
        """Find out which pins mean namespaces that are new; True when one does. Reads documents;
        one that is being written is asked for again."""
        if not self._by_document:
            return False
        found: dict[BlockKey, int] = {}
        for namespace in namespaces:
            if namespace not in self._known:
                document = self._document_of(namespace)
                if document:
                    self._known.add(namespace)
                    ends = [pin.end_ns for pin in self._by_document if _means(pin, document)]
                    _later(found, [namespace] if ends else [], max(ends, default=0))
        if not found:
            return False
        before = dict(self._wanted.namespaces)
        for namespace, end_ns in found.items():
            _later(before, [namespace], end_ns)
        self._wanted = self._wanted._replace(namespaces=before)
        return True

    def until(self, namespace: BlockKey, key: BlockKey) -> int:
        """Return until when a page stays, 0 for one that no pin means. Any thread."""
        wanted = self._wanted
        of_chain = wanted.keys.get(namespace)
        end_ns = 0 if of_chain is None else of_chain.get(key, 0)
        return max(end_ns, wanted.namespaces.get(namespace, 0))


def _later(ends: dict[BlockKey, int], names: Iterable[BlockKey], end_ns: int) -> None:
    for name in names:
        ends[name] = max(end_ns, ends.get(name, 0))


def _means(pin: DirectoryPin, document: Mapping[str, object]) -> bool:
    if pin.kind == "model":
        return label(document) == pin.name
    return document.get("salt") == pin.name
