"""PrefixCache: one model's view of a store."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from omlx_cache.adapters.base import UnsupportedCache
from omlx_cache.arrays.mlxio import allocate_payload, architecture
from omlx_cache.begun import DEFAULT_NEW_TOKENS, Begun, listed
from omlx_cache.codecs import CodecPolicy
from omlx_cache.commit.snapshots import SnapshotPolicy, StridePolicy
from omlx_cache.identity.fingerprint import adapter_identity, fingerprint_model
from omlx_cache.identity.namespace import Namespace, make_namespace, salt_digest
from omlx_cache.pages.layout import layout_of
from omlx_cache.restore.boundaries import Boundaries
from omlx_cache.results import Lookup, PageLocation
from omlx_cache.scope import Scope, ScopeOptions, unsupported
from omlx_cache.session import Session
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import as_tokens
from omlx_cache_storage.prefetch import Prefetch

DEFAULT_GROUP_SIZE = 64


class PrefixCache:
    """Sessions, look-ups and prefetches for one model; evaluates samples of its weights once.

    `model_id` names the model for people; `adapter` is part of its identity (a directory is
    fingerprinted). `make_cache` replaces mlx-lm's `make_prompt_cache(model)`, `policy` the rule
    for restore points, `codec_policy` the `codec` settings. The weights must not change while the
    object lives: make a new one after loading an adapter.

    Methods that look at sequences take the keywords of `ScopeOptions`: `salt` and `extra`, which
    separate tenants, `kv_bits` and `kv_group_size`.

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
            "adapter": adapter_identity(adapter),
            "architecture": architecture(),
        }
        self._label = model_id or f"{type(model).__module__}.{type(model).__qualname__}"
        self.codec_policy = codec_policy or CodecPolicy(
            store.settings.codec, min_quantize_tokens=store.settings.min_quantize_tokens
        )
        self._codec = _stored_codec(store.settings, codec_policy)
        self._use(make_cache or (lambda: make_prompt_cache(model)))
        store.add_label(self._label)

    def _use(self, make_cache: Callable[[], list[Any]]) -> None:
        self.unsupported_reason: str | None = None
        self._make_cache = make_cache
        self._layout_signature = ""
        self._boundaries = Boundaries()
        try:
            self._layout_signature = layout_of(make_cache()).signature
        except UnsupportedCache as error:
            self.unsupported_reason = unsupported(error)

    def fresh_cache(
        self, kv_bits: int | None = None, kv_group_size: int = DEFAULT_GROUP_SIZE
    ) -> list[Any]:
        """Return a new, empty prompt cache of the model, its KVCaches quantised when asked."""
        caches = list(self._make_cache())
        if kv_bits is None:
            return caches
        return [
            QuantizedKVCache(kv_group_size, kv_bits) if isinstance(cache, KVCache) else cache
            for cache in caches
        ]

    def scope(self, **options: Unpack[ScopeOptions]) -> Scope:
        """Return what restores and stores sequences of one kind, for servers without sessions."""
        bits = options.get("kv_bits")
        group_size = options.get("kv_group_size", DEFAULT_GROUP_SIZE)
        return Scope(
            self.store,
            self._namespace(options, _codec_name(bits, group_size)),
            lambda: self.fresh_cache(bits, group_size),
            policy=self.policy,
            codec_policy=self.codec_policy,
            boundaries=self._boundaries,
            unsupported_reason=self.unsupported_reason,
        )

    def session(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int | None = DEFAULT_NEW_TOKENS,
        begun: Begun | None = None,
        deadline: float | None = None,
        **options: Unpack[ScopeOptions],
    ) -> Session:
        """Restore what is cached of a prompt and return the session; never raises for a miss.

        Blocks on the disk for pages that are not in memory, `deadline` seconds at most: what has
        not come by then is left to be computed. `begun` is what `begin` returned for these tokens
        and options; the deadline is then that of the settings, unless another is given. Restored
        buffers have room for the prompt and `max_new_tokens` more (None: 256; at most 65,536).
        """
        scope = self.scope(**options)
        if begun is not None:
            if begun.tokens == listed(tokens) and begun.scope.same_as(scope):
                return Session(begun, begun.deadline if deadline is None else deadline)
            begun.cancel()
        return Session(Begun(scope, tokens, max_new_tokens), deadline)

    def begin(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int | None = DEFAULT_NEW_TOKENS,
        **options: Unpack[ScopeOptions],
    ) -> Begun:
        """Begin to read what is cached of a prompt, into buffers of its own; returns at once.

        Callable from any thread, while others compute. `session(tokens, begun=...)` takes it over
        on the model's thread. Raises nothing.
        """
        begun = Begun(self.scope(**options), tokens, max_new_tokens)
        begun.start()
        return begun

    def with_caches(self, make_cache: Callable[[], list[Any]]) -> "PrefixCache":
        """Return a cache of the same model whose prompt caches are made otherwise.

        For a run with `max_kv_size`, say: the weights are not read again.
        """
        other = copy.copy(self)
        other._use(make_cache)
        return other

    def lookup(self, tokens: Sequence[int], **options: Unpack[ScopeOptions]) -> Lookup:
        """Return where a prefix lies, page by page. Reads no payload, moves nothing.

        Raises ValueError for tokens that are not integers.
        """
        scope = self.scope(**options)
        array = as_tokens(tokens)
        if not scope.supported:
            return Lookup(0, 0, self.unsupported_reason, ())
        point = scope.find(scope.chain(array), max(0, len(array) - 1))
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

    def prefetch(self, tokens: Sequence[int], **options: Unpack[ScopeOptions]) -> Prefetch:
        """Begin to read a prefix's cold pages into the hot tier, while the request is queued.

        Raises ValueError for tokens that are not integers.
        """
        scope = self.scope(**options)
        array = as_tokens(tokens)
        uses = []
        if scope.supported:
            found = scope.find(scope.chain(array), max(0, len(array) - 1)).uses
            uses = sorted(
                (use for uses in found.values() for use in uses), key=lambda use: use.info.position
            )
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
        self._boundaries.clear()
        return sum(self.store.clear(digest) for digest in self.store.namespaces(parts))

    def _namespace(self, options: ScopeOptions, codec: str | None) -> Namespace | None:
        if self.unsupported_reason is not None:
            return None
        settings = self.store.settings
        namespace = make_namespace(
            **self._identity,
            layout=self._layout_signature,
            block_size=settings.block_size,
            key_hash=settings.key_hash,
            codec=codec or self._codec,
            salt=options.get("salt"),
            extra=options.get("extra") or {},
            label=self._label,
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
