"""Scopes: one model's identity in a store, and the scopes of its sequences."""

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any, Self, TypedDict, Unpack

from omlx_cache.adapters.base import UnsupportedCache
from omlx_cache.arrays.mlxio import architecture, check_packing
from omlx_cache.codecs import CODEC_NAMES, CodecPolicy
from omlx_cache.commit.budgets import Budgets
from omlx_cache.commit.points import SnapshotPolicy, StridePolicy
from omlx_cache.identity.fingerprint import adapter_identity, fingerprint_model
from omlx_cache.identity.namespace import Namespace, make_namespace
from omlx_cache.identity.parts import salt_digest
from omlx_cache.mlx_lm_versions import make_prompt_cache, quantized
from omlx_cache.pages.encoding import warm_codecs
from omlx_cache.pages.layout import layout_of
from omlx_cache.restore.walk import Boundaries
from omlx_cache.scope import Scope, unsupported
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore

DEFAULT_GROUP_SIZE = 64


class ScopeOptions(TypedDict, total=False):
    """What separates the sequences of one model from each other.

    `salt` and `extra` separate tenants. With `kv_bits` a sequence's KVCaches are QuantizedKVCaches,
    kept packed; it shares pages with others of these bits, and with dense ones of a store with
    that codec.
    """

    salt: str | bytes | None
    extra: Mapping[str, str] | None
    kv_bits: int | None
    kv_group_size: int


class Scopes:
    """What a model, its adapter, the kind of its caches and a salt are to a store.

    Evaluates samples of the weights, once; they must not change while the object lives. On a GPU it
    computes a token to compile the kernels of the store's codecs. What the arguments mean is said
    by `PrefixCache`.
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
        if not isinstance(store, BlockStore):
            swapped = ": the two are swapped" if isinstance(model, BlockStore) else ""
            raise TypeError(
                f"{type(self).__name__}(model, store) got {type(store).__name__} for the store, "
                f"which must be a BlockStore{swapped}"
            )
        self.store = store
        self.policy: SnapshotPolicy = policy or StridePolicy(store.settings.snapshot_stride)
        self._identity = {
            "model": fingerprint_model(model),
            "adapter": adapter_identity(adapter),
            "architecture": store.settings.architecture(architecture()),
        }
        self._label = model_id or f"{type(model).__module__}.{type(model).__qualname__}"
        self.codec_policy = codec_policy or CodecPolicy(
            store.settings.codec, min_quantize_tokens=store.settings.min_quantize_tokens
        )
        self._codec = _stored_codec(store.settings, codec_policy)
        self._use(make_cache or (lambda: make_prompt_cache(model)))
        store.add_label(self._label)
        if self.unsupported_reason is None:
            policies = [self.codec_policy, *_cold_policies(store.settings)]
            warm_codecs(model, self._make_cache, policies)

    def _use(self, make_cache: Callable[[], list[Any]]) -> None:
        self.unsupported_reason: str | None = None
        self._make_cache = make_cache
        self._layout_signature = ""
        self._groups: tuple[str, ...] = ()
        self._boundaries = Boundaries()
        self._budgets = Budgets(
            self.store.settings, self._label, self.store.told, self.store.budget_of_disk
        )
        try:
            layout = layout_of(make_cache())
            self._layout_signature = layout.signature
            self._groups = tuple(group.name for group in layout.groups)
        except UnsupportedCache as error:
            self.unsupported_reason = unsupported(error)

    def fresh_cache(
        self, kv_bits: int | None = None, kv_group_size: int = DEFAULT_GROUP_SIZE
    ) -> list[Any]:
        """Return a new, empty prompt cache of the model, its KVCaches quantised when asked."""
        caches = list(self._make_cache())
        if kv_bits is None:
            return caches
        return quantized(caches, kv_group_size, kv_bits)

    def scope(self, **options: Unpack[ScopeOptions]) -> Scope:
        """Return what restores and stores sequences of one kind, for servers without sessions.

        Raises TypeError for a keyword that is no option, and ValueError for bits or a group size
        that MLX cannot pack.
        """
        unknown = options.keys() - ScopeOptions.__annotations__.keys()
        if unknown:
            # A misspelt salt would share one tenant's pages with all others.
            raise TypeError(f"unexpected keyword argument {', '.join(sorted(unknown))}")
        bits = options.get("kv_bits")
        group_size = options.get("kv_group_size", DEFAULT_GROUP_SIZE)
        if bits is not None:
            check_packing(bits, group_size)
        return Scope(
            self.store,
            self._namespace(options, _codec_name(bits, group_size)),
            lambda: self.fresh_cache(bits, group_size),
            policy=self.policy,
            codec_policy=self.codec_policy,
            boundaries=self._boundaries,
            budgets=self._budgets,
            unsupported_reason=self.unsupported_reason,
        )

    def with_caches(self, make_cache: Callable[[], list[Any]]) -> Self:
        """Return a cache of the same model whose prompt caches are made otherwise.

        For a run with `max_kv_size`, say: the weights are not read again.
        """
        other = copy.copy(self)
        other._use(make_cache)
        return other

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
            codec=codec or self._codec,
            salt=options.get("salt"),
            extra=options.get("extra") or {},
            label=self._label,
            groups=self._groups,
        )
        return self.store.register(namespace)


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


def _cold_policies(settings: CacheSettings) -> list[CodecPolicy]:
    """Return what the writer encodes pages with; nothing for a form that MLX has no part in."""
    return [CodecPolicy(name) for name in CODEC_NAMES if name == settings.cold_codec]
