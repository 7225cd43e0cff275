"""The namespaces that a process has use for, and their documents."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

from omlx_cache.identity.namespace import Namespace
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import BlockKey

RECENT = 1024


class KnownNamespaces:
    """Keeps a namespace while somebody holds it or memory has a page of it; and the latest 1,024.

    A page's document is written with the first page of its namespace, which may be long after
    its session. What is forgotten has its document on the disk, or no page at all. Any thread may
    call. `in_memory` names the namespaces that memory has pages of. `_lock` guards `_kept` (the
    latest last) and `_limit`, and is taken before memory's own; `_held` guards itself.
    """

    def __init__(self, in_memory: Callable[[], Collection[BlockKey]] = tuple) -> None:
        self.in_memory = in_memory
        self._lock = threading.Lock()
        self._kept: OrderedDict[BlockKey, Namespace] = OrderedDict()
        self._limit = 2 * RECENT
        self._held: weakref.WeakValueDictionary[BlockKey, Namespace] = weakref.WeakValueDictionary()

    @uninterrupted
    def __len__(self) -> int:
        with self._lock:
            return len(self._kept)

    @uninterrupted
    def add(self, namespace: Namespace) -> Namespace:
        """Note a namespace, and return the object that stands for it from now on."""
        with self._lock:
            digest = namespace.digest
            namespace = self._kept.get(digest) or self._held.get(digest) or namespace
            self._held[digest] = self._kept[digest] = namespace
            self._kept.move_to_end(digest)
            if len(self._kept) > self._limit:
                self._forget()
            return namespace

    @uninterrupted
    def document(self, digest: BlockKey) -> dict[str, object]:
        """Return a namespace's document, {} for one that is not known."""
        with self._lock:
            namespace = self._kept.get(digest) or self._held.get(digest)
        return {} if namespace is None else dict(namespace.document)

    @uninterrupted
    def latest(self) -> list[Namespace]:
        """Return the namespaces that are kept, the latest last."""
        with self._lock:
            return list(self._kept.values())

    @uninterrupted
    def documents(self) -> dict[BlockKey, Mapping[str, object]]:
        """Return every known document."""
        with self._lock:
            known = {**dict(self._held), **self._kept}
        return {digest: namespace.document for digest, namespace in known.items()}

    def _forget(self) -> None:
        """Drop what is old, held by nobody, and without a page in memory."""
        idle: dict[BlockKey, tuple[Mapping[str, object], tuple[str, ...]]] = {}
        for digest in list(self._kept)[:-RECENT]:
            kept = self._kept.pop(digest)
            parts = kept.document, kept.groups
            del kept
            held = self._held.get(digest)
            if held is None:
                idle[digest] = parts
            else:
                self._keep(held)
        # Asked last: who has let go of a namespace has put his pages into memory before.
        for digest in self.in_memory():
            if digest in idle:
                self._keep(Namespace(digest, *idle[digest]))
        self._limit = len(self._kept) + RECENT

    def _keep(self, namespace: Namespace) -> None:
        """Keep an old one, among the oldest."""
        self._held[namespace.digest] = self._kept[namespace.digest] = namespace
        self._kept.move_to_end(namespace.digest, last=False)
