"""The namespace document: everything that makes KV incompatible, and its digest; the installed
versions; and the namespaces that a process has use for. Read without NumPy or MLX."""

import hashlib
import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Self

from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.documents import MLX, MLX_LM, Versions, versions
from omlx_cache_storage.format import FORMAT_VERSION
from omlx_cache_storage.keys import KEY_HASH, BlockKey, namespace_digest

RECENT = 1024
Parts = tuple[Mapping[str, object], tuple[str, ...], str]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Namespace:
    """A digest, the first parent of every chain in it, and the document it was made from; `groups`
    names the layer groups whose pages are in it, () where they are not known. `computed_by` stands
    for its model on its kind of machine: namespaces of other salts and settings share how fast that
    computes."""

    digest: BlockKey
    document: Mapping[str, object]
    groups: tuple[str, ...] = ()
    computed_by: str = ""

    def separated(
        self, codec: str | None, salt: str | bytes | None, extra: Mapping[str, str] | None
    ) -> Self:
        """Return the namespace of the same model's sequences that a codec (None: the same), a salt
        or `extra` separates.

        The salt is hashed, so that the readable document does not give it away. Raises TypeError
        for an invalid salt or extra.
        """
        document = {
            **self.document,
            "codec": codec or self.document["codec"],
            "salt": salt_digest(salt),
            "extra": named(extra),
        }
        label = document.pop("label")
        return replace(
            self, digest=namespace_digest(document), document={**document, "label": label}
        )


NOWHERE = Namespace(BlockKey(b""), {})
"""Of requests whose pages have no place."""


def make_namespace(
    *,
    model: str,
    adapter: str,
    architecture: str,
    layout: str,
    block_size: int,
    codec: str,
    label: str,
    groups: tuple[str, ...],
) -> Namespace:
    """Return the namespace of a model's sequences that nothing else separates; `label` only names
    the model for people, and `groups` follow from the layout.

    Versions of MLX and mlx-lm and the device's architecture are part of it: others may compute
    other bits.
    """
    document = {
        "format": FORMAT_VERSION,
        "model": model,
        "adapter": adapter,
        "architecture": architecture,
        "layout": hashlib.sha256(layout.encode()).hexdigest(),
        "block_size": block_size,
        "key_hash": KEY_HASH,
        "codec": codec,
        "salt": "",
        "extra": {},
        "software": software(),
    }
    computed_by = hashlib.sha256(json.dumps([model, adapter, architecture]).encode()).hexdigest()
    digest = namespace_digest(document)
    return Namespace(digest, {**document, "label": label}, groups, computed_by)


class KnownNamespaces:
    """Keeps a namespace while its object lives or memory has a page of it; and the latest 1,024.

    A page's document is written with the first page of its namespace, which may be long after its
    session. A forgotten namespace has its document on the disk, or no page at all. Any thread may
    call. `in_memory` names the namespaces that memory has pages of. `_lock` guards `_parts` (what
    each has beside its digest, the latest last) and `_limit`, and is taken before memory's own.
    `_held`, the objects that stand for them, guards itself.
    """

    def __init__(self, in_memory: Callable[[], Collection[BlockKey]] = tuple) -> None:
        self.in_memory = in_memory
        self._lock = threading.Lock()
        self._parts: OrderedDict[BlockKey, Parts] = OrderedDict()
        self._limit = 2 * RECENT
        self._held: weakref.WeakValueDictionary[BlockKey, Namespace] = weakref.WeakValueDictionary()

    @uninterrupted
    def add(self, namespace: Namespace) -> Namespace:
        """Remember what a namespace was made from, for its document, while the returned object
        lives. Raises TypeError for anything else."""
        if not isinstance(namespace, Namespace):
            raise TypeError(
                f"a store registers namespaces, not {type(namespace).__name__}; PrefixCache does "
                "that by itself, and for a cache class there is omlx_cache.register_adapter"
            )
        with self._lock:
            namespace = self._held.setdefault(namespace.digest, namespace)
            document, groups = namespace.document, namespace.groups
            self._parts[namespace.digest] = document, groups, namespace.computed_by
            self._parts.move_to_end(namespace.digest)
            if len(self._parts) > self._limit:
                self._forget()
            return namespace

    @uninterrupted
    def document(self, digest: BlockKey) -> dict[str, object]:
        with self._lock:
            return dict(self._parts[digest][0]) if digest in self._parts else {}

    @uninterrupted
    def latest(self) -> list[Namespace]:
        with self._lock:
            return [Namespace(digest, *parts) for digest, parts in self._parts.items()]

    def _forget(self) -> None:
        idle = [digest for digest in list(self._parts)[:-RECENT] if digest not in self._held]
        # Asked last: a namespace is released after its pages are in memory.
        in_memory = self.in_memory()
        for digest in idle:
            if digest not in in_memory:
                del self._parts[digest]
        self._limit = len(self._parts) + RECENT


def salt_digest(salt: str | bytes | None) -> str:
    """Return a salt's digest with its kind, empty for none; raises TypeError for anything else."""
    if salt is None:
        return ""
    # A lone surrogate, as JSON may bring one from a client, is a salt like any other.
    if isinstance(salt, str):
        kind, raw = "text", salt.encode("utf-8", "surrogatepass")
    elif isinstance(salt, bytes | bytearray | memoryview):
        kind, raw = "bytes", bytes(salt)
    else:
        # bytes(5) would be five zero bytes, which can be another tenant's salt.
        raise TypeError(f"a salt is text or bytes, not {type(salt).__name__}")
    return f"{kind}:{hashlib.sha256(raw).hexdigest()}"


def named(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Return what separates runs beside the salt; raises TypeError for anything but texts by
    name."""
    if extra is None:
        return {}
    if not isinstance(extra, Mapping) or not all(
        isinstance(text, str) for pair in extra.items() for text in pair
    ):
        raise TypeError(f'extra names texts, as {{"rope": "yarn-4x"}}; got {extra!r}')
    return dict(extra)


def software() -> dict[str, str]:
    return {name: version_of(name) for name in (MLX, MLX_LM)}


def installed() -> Versions:
    return versions({"format": FORMAT_VERSION, "software": software()})


@cache
def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
