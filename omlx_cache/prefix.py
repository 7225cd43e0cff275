"""PrefixCache: one model's view of a store."""

import copy
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from omlx_cache.adapters.base import UnsupportedCache
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache.codecs import CodecPolicy
from omlx_cache.commit.snapshots import SnapshotPolicy, StridePolicy
from omlx_cache.identity.fingerprint import adapter_identity, fingerprint_model
from omlx_cache.identity.namespace import Namespace, make_namespace, salt_digest
from omlx_cache.pages.layout import layout_of
from omlx_cache.restore.lookup import RestorePoint, find_restore_point
from omlx_cache.restore.run import unsupported
from omlx_cache.results import Lookup, PageLocation
from omlx_cache.sequences import SequenceView
from omlx_cache.session import DEFAULT_NEW_TOKENS, Session
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens
from omlx_cache_storage.prefetch import Prefetch

KNOWN_BOUNDARIES = 65_536


class PrefixCache:
    """Sessions, look-ups and prefetches for one model; evaluates samples of its weights once.

    `model_id` names the model for people and is part of its identity, as is `adapter` (a directory
    is fingerprinted). `make_cache` replaces mlx-lm's `make_prompt_cache(model)`, `policy` the rule
    for snapshots, `codec_policy` the `codec` settings. The weights must not change while the object
    lives: make a new one after loading an adapter.

    A model with a cache class that no adapter reads gets sessions that miss, and stores nothing:
    `unsupported_reason` names the class.
    """

    def __init__(
        self,
        model: Any,
        store: BlockStore,
        *,
        model_id: str | None = None,
        adapter: str | os.PathLike[str] | None = None,
        make_cache: Callable[[], list[Any]] | None = None,
        policy: SnapshotPolicy | None = None,
        codec_policy: CodecPolicy | None = None,
    ) -> None:
        self.store = store
        self.policy: SnapshotPolicy = policy or StridePolicy(store.settings.snapshot_stride)
        self._identity = {
            "model": fingerprint_model(model),
            "model_id": model_id or "",
            "adapter": adapter_identity(adapter),
        }
        self.codec_policy = codec_policy or CodecPolicy(
            store.settings.codec, min_quantize_tokens=store.settings.min_quantize_tokens
        )
        self._codec = _stored_codec(store.settings, codec_policy)
        self._use(make_cache or (lambda: make_prompt_cache(model)))
        store.add_label(model_id or f"{type(model).__module__}.{type(model).__qualname__}")

    def _use(self, make_cache: Callable[[], list[Any]]) -> None:
        self.unsupported_reason: str | None = None
        self._make_cache = make_cache
        self._layout_signature = ""
        self._has_paged = False
        self._known: OrderedDict[BlockKey, None] = OrderedDict()
        try:
            layout = layout_of(make_cache())
            self._layout_signature = layout.signature
            self._has_paged = any(group.kind == "paged" for group in layout.groups)
        except UnsupportedCache as error:
            self.unsupported_reason = unsupported(error)

    def fresh_cache(self, kv_bits: int | None = None, kv_group_size: int = 64) -> list[Any]:
        """Return a new, empty prompt cache of the model, its KVCaches quantised when asked."""
        caches = list(self._make_cache())
        if kv_bits is None:
            return caches
        return [
            QuantizedKVCache(kv_group_size, kv_bits) if isinstance(cache, KVCache) else cache
            for cache in caches
        ]

    def session(
        self,
        tokens: Sequence[int],
        *,
        salt: str | bytes | None = None,
        extra: Mapping[str, str] | None = None,
        max_new_tokens: int | None = DEFAULT_NEW_TOKENS,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
    ) -> Session:
        """Restore what is cached of a prompt and return the session; never raises for a miss.

        Blocks on the disk for pages that are not in memory (see `prefetch`). Restored buffers
        have room for the prompt and `max_new_tokens` more (None: 256; at most 65,536). `salt`
        and `extra` separate tenants.
        With `kv_bits` the session's KVCaches are QuantizedKVCaches, kept packed; it shares pages
        with other sessions of these bits, and with dense ones of a store with that codec.
        """
        return Session(
            self,
            tokens,
            self._namespace(salt, extra, _codec_name(kv_bits, kv_group_size)),
            fresh=lambda: self.fresh_cache(kv_bits, kv_group_size),
            max_new_tokens=max_new_tokens,
        )

    def sequences(
        self,
        *,
        salt: str | bytes | None = None,
        extra: Mapping[str, str] | None = None,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
    ) -> SequenceView:
        """Return what restores and stores whole sequences, for servers without sessions."""
        return SequenceView(
            self,
            self._namespace(salt, extra, _codec_name(kv_bits, kv_group_size)),
            lambda: self.fresh_cache(kv_bits, kv_group_size),
        )

    def with_caches(self, make_cache: Callable[[], list[Any]]) -> "PrefixCache":
        """Return a cache of the same model whose prompt caches are made otherwise.

        For a run with `max_kv_size`, say: the weights are not read again.
        """
        other = copy.copy(self)
        other._use(make_cache)
        return other

    def lookup(
        self,
        tokens: Sequence[int],
        *,
        salt: str | bytes | None = None,
        extra: Mapping[str, str] | None = None,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
    ) -> Lookup:
        """Return where a prefix lies, page by page. Reads no payload, moves nothing.

        Raises ValueError for tokens that are not integers.
        """
        found = self._find(tokens, salt, extra, kv_bits, kv_group_size)
        if found is None:
            return Lookup(0, 0, self.unsupported_reason, ())
        point, _ = found
        pages = tuple(
            PageLocation(
                use.page.key.hex(),
                group.name,
                use.info.position - use.info.held,
                use.info.position,
                use.info.nbytes,
                use.info.tier,
            )
            for group, uses in point.uses.items()
            for use in uses
        )
        return Lookup(point.position, point.matched, point.reason, pages)

    def prefetch(
        self,
        tokens: Sequence[int],
        *,
        salt: str | bytes | None = None,
        extra: Mapping[str, str] | None = None,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
    ) -> Prefetch:
        """Begin to read a prefix's cold pages into the hot tier, while the request is queued.

        Raises ValueError for tokens that are not integers.
        """
        found = self._find(tokens, salt, extra, kv_bits, kv_group_size)
        uses = [] if found is None else [u for uses in found[0].uses.values() for u in uses]
        uses.sort(key=lambda use: use.info.position)
        return self.store.prefetch([use.page for use in uses], allocate_payload)

    def clear(
        self, *, salt: str | bytes | None = None, extra: Mapping[str, str] | None = None
    ) -> int:
        """Delete all that is cached for this model under a salt; return the number of pages.

        Quantised sessions' pages and those of every `extra` go too, unless `extra` names one; pages
        of earlier processes as well. Waits for the disk.
        """
        parts: dict[str, object] = {**self._identity, "salt": salt_digest(salt)}
        if extra is not None:
            parts["extra"] = dict(extra)
        self._known.clear()
        return sum(self.store.clear(digest) for digest in self.store.namespaces(parts))

    def known_boundaries(self, chain: KeyChain) -> frozenset[int]:
        """Return boundaries of a chain that earlier commits passed, for layouts without pages.

        Layouts with a paged group need no memory of their own: the pages are it.
        """
        if self._has_paged:
            return frozenset()
        size = chain.block_size
        return frozenset(
            end for end in range(size, len(chain) + 1, size) if chain.key(end) in self._known
        )

    def remember(self, chain: KeyChain, position: int) -> None:
        """Note the boundaries that a commit passed; bounded, the oldest are forgotten."""
        if self._has_paged:
            return
        for end in range(chain.block_size, position + 1, chain.block_size):
            self._known[chain.key(end)] = None
            self._known.move_to_end(chain.key(end))
        while len(self._known) > KNOWN_BOUNDARIES:
            self._known.popitem(last=False)

    def _find(
        self,
        tokens: Sequence[int],
        salt: str | bytes | None,
        extra: Mapping[str, str] | None,
        kv_bits: int | None,
        kv_group_size: int,
    ) -> tuple[RestorePoint, KeyChain] | None:
        namespace = self._namespace(salt, extra, _codec_name(kv_bits, kv_group_size))
        if namespace is None:
            return None
        settings = self.store.settings
        chain = KeyChain(
            namespace.digest, as_tokens(tokens), settings.block_size, settings.key_hash
        )
        groups = layout_of(self.fresh_cache(kv_bits, kv_group_size)).groups
        point = find_restore_point(
            chain,
            groups,
            self.store,
            limit=max(0, len(chain) - 1),
            known=self.known_boundaries(chain),
        )
        return point, chain

    def _namespace(
        self, salt: str | bytes | None, extra: Mapping[str, str] | None, codec: str | None = None
    ) -> Namespace | None:
        if self.unsupported_reason is not None:
            return None
        settings = self.store.settings
        namespace = make_namespace(
            **self._identity,
            layout=self._layout_signature,
            block_size=settings.block_size,
            key_hash=settings.key_hash,
            codec=codec or self._codec,
            salt=salt,
            extra=extra or {},
        )
        self.store.register(namespace)
        return namespace


def _codec_name(kv_bits: int | None, kv_group_size: int) -> str | None:
    """Return the codec that packed live caches stand for, in the words of the `codec` setting."""
    if kv_bits is None:
        return None
    return f"affine{kv_bits}" + ("" if kv_group_size == 64 else f"g{kv_group_size}")


def _stored_codec(settings: CacheSettings, policy: CodecPolicy | None) -> str:
    """Return the codecs that pages of a store may have gone through; lossless ones do not count."""
    codec = settings.codec if policy is None else str(policy)
    if settings.cold_codec in ("dense", "zstd"):
        return codec
    return f"{codec}, cold {settings.cold_codec}"
