"""Scope: what may share pages: one model, one kind of cache, one salt."""

import contextlib
import copy
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from reprlib import repr as short
from typing import Any, Self, TypedDict, Unpack

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, STATE, GroupSpec, UnsupportedCache
from omlx_cache.adapters.registry import extracted
from omlx_cache.arrays.mlxio import architecture, check_packing
from omlx_cache.codecs.identity import CODEC_NAMES, check_codec_name
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.commit.admission import Admission, Budgets
from omlx_cache.commit.committer import CommitResult, Committer, SnapshotPolicy, StridePolicy
from omlx_cache.commit.live import LiveExtent, Staging, extent_of
from omlx_cache.identity.fingerprint import adapter_identity, fingerprint_model, shares_weights
from omlx_cache.identity.namespace import NOWHERE, Namespace, make_namespace, named, salt_digest
from omlx_cache.mlx_lm_versions import cache_maker, quantized
from omlx_cache.pages.encoding import warm_codecs
from omlx_cache.pages.layout import Layout, layout_of
from omlx_cache.restore.lookup import RestoreGate, RestorePoint, find_restore_point
from omlx_cache.restore.pending import Boundaries, PendingRestore
from omlx_cache.restore.reading import Walk
from omlx_cache.store import BlockStore
from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.eviction.order import Ended, Priority
from omlx_cache_storage.keys import KeyChain, Tokens
from omlx_cache_storage.page import PageId

_log = logging.getLogger(__name__)

DEFAULT_GROUP_SIZE = 64
CHUNK_SECONDS = 0.1
"""Seconds that a chunk of a preparation may take: a request may arrive meanwhile."""
SLOW_SECONDS = 0.5
"""Seconds of the smallest chunk, or of the restore before it, from which on nothing is prepared:
neither can be stopped half-way for a request."""
RESTORE_SECONDS = 0.1
"""Seconds that a restore before a preparation may take although computing what lies behind takes
less."""
FEWEST_TOKENS = 32
"""Fewer tokens take hardly less time than so many."""
MOST_TOKENS = 256
"""More tokens are hardly quicker each. Recurrent layers count their blocks from the start of a
chunk: chunks that end at multiples of it give the same bits."""


class Pace:
    """How quickly a model reads a prompt, and so the tokens of a chunk of `CHUNK_SECONDS`. Mutable
    by the model's thread: `_tokens_per_second`, of the last chunk, 0 before any; `_asked`, of
    requests' prompts; `_restored` tokens and `_restore_seconds`, of the last restore."""

    def __init__(self) -> None:
        self._tokens_per_second = self._asked = self._restore_seconds = 0.0
        self._restored = 1

    @property
    def tokens(self) -> int:
        wanted = int(self._tokens_per_second * CHUNK_SECONDS)
        return min(max(wanted, FEWEST_TOKENS), MOST_TOKENS)

    def took(self, tokens: int, seconds: float) -> None:
        """Note how long a chunk took; a short one takes as long as `FEWEST_TOKENS`."""
        self._tokens_per_second = max(tokens, FEWEST_TOKENS) / max(seconds, 1e-6)

    def restored(self, tokens: int, seconds: float) -> None:
        self._restored, self._restore_seconds = max(tokens, 1), seconds

    def ask(self, tokens_per_second: float | None) -> None:
        """Note how quickly requests' prompts are read: at most twice as quick as a slower chunk
        since."""
        if tokens_per_second is not None and tokens_per_second != self._asked:
            self._asked = tokens_per_second
            at_most = 2 * self._tokens_per_second or tokens_per_second
            self._tokens_per_second = min(tokens_per_second, at_most)

    def is_slow(self, fewest: int) -> bool:
        return 0 < self._tokens_per_second * SLOW_SECONDS < fewest

    def restores_slowly(self, tokens: int, missing: int) -> bool:
        """True when a restore would take too long, or longer than to compute `missing` tokens
        behind it: as long as the last one, or less if shorter. A later one is then expected to be
        quicker, to be tried."""
        rate, share = self._tokens_per_second, min(1.0, tokens / self._restored)
        worth = min(SLOW_SECONDS, missing / rate) if rate else SLOW_SECONDS
        is_slow = share * self._restore_seconds > max(RESTORE_SECONDS, worth)
        self._restore_seconds /= 2 if is_slow else 1
        return is_slow


class ScopeOptions(TypedDict, total=False):
    """The options that separate the sequences of one model.

    `salt` and `extra` separate tenants; the salt "" is one, None is none. With `kv_bits` a
    sequence's KVCaches are QuantizedKVCaches, kept packed; it shares pages with sequences of these
    bits, and with dense ones of a store with that codec.
    """

    salt: str | bytes | None
    extra: Mapping[str, str] | None
    kv_bits: int | None
    kv_group_size: int


class Scope:
    """Restores and stores the sequences of one scope. Use it on the model's thread.

    No method raises for a failure of the cache or the disk, or for an unsupported model. Chains
    come from `chain` and belong to this scope, whose pages are in `namespace`. `blank` is the
    layout of empty caches, None for a model that is not `supported`; `groups` are paged first.
    `trims`: a stored sequence can be restored to any shorter length.
    """

    def __init__(
        self,
        kinds: "Scopes",
        namespace: Namespace,
        fresh: Callable[[], list[Any]],
        blank: Layout | None,
    ) -> None:
        self.store = kinds.store
        self.unsupported_reason = kinds.unsupported_reason
        self.fresh = fresh
        self.blank = blank
        self.kinds = kinds
        self.namespace = namespace
        self._latest: KeyChain | None = None
        self.supported = blank is not None
        self.groups: tuple[GroupSpec, ...] = () if blank is None else tuple(blank.groups)
        self.trims = {*self.groups} <= {PAGED}

    def layout(self, prompt_cache: Sequence[Any]) -> Layout | None:
        """Return the layout of caches of this scope, None for anything else."""
        if self.blank is not None and isinstance(prompt_cache, Sequence):
            with contextlib.suppress(UnsupportedCache):
                layout = layout_of(extracted(prompt_cache))
                if layout.signature == self.blank.signature:
                    return layout
        return None

    @property
    def fewest_tokens(self) -> int:
        """The smallest chunk that gives the bits of a prefill, and is worth it."""
        return MOST_TOKENS if STATE in self.groups else FEWEST_TOKENS

    def chain(self, tokens: Tokens) -> KeyChain:
        """Return the keys of a sequence; raises ValueError for a scope that is not supported."""
        if not self.supported:
            raise ValueError("a model whose caches are not supported has no keys")
        # Each step of a request makes a chain, and the next turn begins with the same tokens.
        size = self.store.settings.block_size
        self._latest = KeyChain(self.namespace.digest, tokens, size, self._latest)
        return self._latest

    @uninterrupted
    def find(
        self,
        chain: KeyChain,
        limit: int,
        *,
        worth: bool = False,
        wait: float | None = None,
        asks: bool = True,
    ) -> RestorePoint:
        """Return how far a sequence can be restored, at most `limit`, or with `worth` how far it
        would be; reads no payload. Waits for other machines `wait` seconds at most (not without
        `asks`), and for the disk no longer, or as long as a chunk takes."""
        point = find_restore_point(
            chain,
            self.groups,
            self.store,
            limit=limit,
            tiers=self.store,
            known=self.kinds.boundaries.of(chain),
            gate=self._gate(probes=False) if worth else None,
            wait=wait,
            news_seconds=inf if wait is None else max(wait, CHUNK_SECONDS),
            asks=asks,
        )
        return point._replace(reason=reasons.STORE_CLOSED) if self.store.closed else point

    def stops(self, start: int, stop: int, branch: int | None = None) -> list[int]:
        """Return where a prompt's windows and recurrent state are wanted while [start, stop) is
        prefilled, for a scope that does not trim."""
        size = self.store.settings.block_size
        return self.kinds.policy.positions(start=start, stop=stop, block_size=size, branch=branch)

    def pending(
        self,
        chain: KeyChain,
        limit: int,
        capacity: int,
        stamp: int | None = None,
        *,
        prepared: bool = False,
    ) -> PendingRestore:
        """Return a restore of at most `limit` tokens into buffers with room for `capacity`, not
        begun; the chain belongs to it until it is taken. For something `prepared` it evicts only
        pages that the disk has."""
        known, gate = self.kinds.boundaries.of(chain), self._gate()

        def new_walk(stamp: int | None) -> Walk:
            caches = self.fresh()
            return Walk(self.store, caches, chain, limit, capacity, known, stamp, gate, prepared)

        return PendingRestore(self.store.restores, new_walk, stamp)

    def _gate(self, *, probes: bool = True) -> RestoreGate | None:
        reads = self.store.reading_gate
        return (
            None if reads is None else RestoreGate(reads, self.namespace.computed_by, probes=probes)
        )

    def committer(
        self,
        chain: KeyChain,
        staging: Staging,
        *,
        start: int = 0,
        local: int | None = None,
        prompt_length: int = 0,
        own: Iterable[PageId] = (),
        stops: Iterable[int] = (),
        stamp: int | None = None,
        along: Iterable[PageId] = (),
        priority: Priority = "normal",
        since_ns: int | None = None,
        prepared: int | None = None,
    ) -> Committer:
        return Committer(
            Admission(
                self.store,
                staging,
                chain,
                self.kinds.codec_policy,
                self.kinds.budgets,
                own,
                stamp,
                self.store.settings.commit_wait_seconds,
                along,
                priority=priority,
                since_ns=since_ns,
                prepared=prepared,
            ),
            groups=self.groups,
            start=start,
            local=local,
            prompt_length=prompt_length,
            stops=stops,
        )

    @uninterrupted
    def commit(
        self,
        chain: KeyChain,
        prompt_cache: Sequence[Any],
        prompt_length: int = 0,
        along: Iterable[PageId] = (),
        since_ns: int = 0,
        ended: Ended | None = None,
    ) -> CommitResult:
        """Hand a finished sequence's pages to the tiers; copies, and evaluates its copies.

        Windows are kept as far as the ring still holds them, recurrent state at the cache's
        position. The end of the prompt gets a page of its own, so that the same prompt is found up
        to there. `along` are pages that were stored while it grew: they share its place in the
        eviction order, which depends on how the answer ended. Pages that others used after
        `since_ns` keep their stamps.
        """
        staging = Staging(self.store.counters, self.store.snapshot_bytes)

        def finish() -> CommitResult:
            layout = self.layout(prompt_cache)
            if layout is None:
                return CommitResult.none(reasons.LAYOUT_CHANGED)
            committer = self.committer(
                chain,
                staging,
                prompt_length=prompt_length,
                stops=() if self.trims else self.stops(0, len(chain) + 1),
                along=along,
                since_ns=since_ns,
            )
            return self.finish(committer, layout, extent_of(layout, len(chain)), ended)

        try:
            return self.counted(finish)
        finally:
            staging.release()

    def finish(
        self,
        committer: Committer,
        layout: Layout,
        extent: LiveExtent,
        ended: Ended | None = None,
        *,
        asked: bool = True,
    ) -> CommitResult:
        """Store the rest of a sequence. One that no request has `asked` for, neither the explainer
        nor the trace notes."""
        result = committer.finish(layout, extent, ended)
        chain, log, end = committer.chain, self.store.requests, result.tokens
        if PAGED not in self.groups:
            self.kinds.boundaries.remember(chain, end)
        if asked and log.trace is not None:
            log.trace.note_size(chain.namespace, self.kinds.budgets.token_bytes)
            # Of a request in flight the trace will have it with all of its keys.
            if not any(one.chain is chain for one in log.latest()):
                log.trace.add_stored(chain, end)
        if asked:
            log.explainer.store(chain.namespace, chain.tokens, end, result.skipped)
        return result

    def counted(self, finish: Callable[[], CommitResult]) -> CommitResult:
        """Call the end of a commit, and count it. An exception is logged, and is a reason to have
        stored nothing."""
        began = time.perf_counter()
        try:
            result = finish()
        except UnsupportedCache as error:
            result = CommitResult.none(reasons.word(unsupported(error)))
        except Exception as error:
            self.log_failure("commit failed, nothing more is stored", error)
            result = CommitResult.none(reasons.ERROR)
        seconds = time.perf_counter() - began
        self.store.counters.add(
            skips=result.skipped,
            commits=1,
            rejected_pages=sum(result.skipped.values()),
            commit_seconds=seconds,
        )
        self.store.events.timings.observe("commit_seconds", seconds)
        return result

    def log_failure(self, what: str, error: Exception) -> None:
        """Log an exception: in one line where the program has not evaluated what another thread
        computes."""
        if "in current thread" in str(error):
            advice = "evaluate on the thread that computes, or call checkpoint there"
            self.store.arguments.say("thread", f"{what}: {error} {advice}")
        else:
            _log.error("%s", what, exc_info=error)


class Scopes:
    """The scopes of a model in a store; `PrefixCache` describes the arguments.

    Evaluates samples of the weights, once. On a GPU it computes a token to compile the kernels of
    the store's codecs.
    """

    def __init__(
        self,
        model: Any,
        store: BlockStore,
        *,
        model_id: str | os.PathLike[str] | None = None,
        adapter: str | os.PathLike[str] | None = None,
        make_cache: Callable[[], list[Any]] | None = None,
        policy: SnapshotPolicy | None = None,
        codec_policy: CodecPolicy | str | None = None,
    ) -> None:
        if not isinstance(store, BlockStore):
            swapped = ": the two are swapped" if isinstance(model, BlockStore) else ""
            raise TypeError(
                f"{type(self).__name__}(model, store) got {type(store).__name__} for the store, "
                f"which must be a BlockStore{swapped}"
            )
        if not callable(getattr(model, "parameters", None)):
            raise TypeError(
                f"{type(self).__name__}(model, store) got {type(model).__name__} for the model, "
                "which must be an MLX model: what mlx_lm.load returns first"
            )
        policy = StridePolicy(store.settings.snapshot_stride) if policy is None else policy
        if isinstance(policy, type) or not callable(getattr(policy, "positions", None)):
            raise TypeError(f"policy must be one such as StridePolicy(2048), got {policy!r}")
        codec = store.settings.codec if codec_policy is None else codec_policy
        if isinstance(codec, str):
            codec = check_codec_name(codec.strip().lower())
            codec_policy = CodecPolicy(
                codec, min_quantize_tokens=store.settings.min_quantize_tokens
            )
        if not isinstance(codec_policy, CodecPolicy):
            raise TypeError(
                f"codec_policy must be a codec's name or a CodecPolicy, got {codec_policy!r}"
            )
        for name, given in (("model_id", model_id), ("adapter", adapter)):
            if given is not None and not isinstance(given, str | os.PathLike):
                raise TypeError(f"{name} must be text or a path, got {given!r}")
        self.store = store
        # A server that unloads a model gets its memory back.
        self._model = weakref.ref(model)
        self.policy, self.codec_policy = policy, codec_policy
        self._identity = {
            "model": fingerprint_model(model),
            "adapter": adapter_identity(adapter),
            "architecture": store.settings.architecture(architecture()),
        }
        self._label = (
            os.fspath(model_id or "") or f"{type(model).__module__}.{type(model).__qualname__}"
        )
        # The codecs that pages may have gone through; lossless ones do not count.
        self._codec = str(codec)
        cold_codec = store.settings.cold_codec
        if cold_codec not in ("dense", "zstd"):
            self._codec += f", cold {cold_codec}"
        self._use(cache_maker(model) if make_cache is None else make_cache)
        store.labels[self._label] = None
        if self.unsupported_reason is None:
            # MLX has no part in the other forms that the writer stores.
            cold = [CodecPolicy(name) for name in CODEC_NAMES if name == cold_codec]
            warm_codecs(model, self._make_cache, [self.codec_policy, *cold])

    def _use(self, make_cache: Callable[[], list[Any]]) -> None:
        self.unsupported_reason: str | None = None
        made = make_cache() if callable(make_cache) else make_cache
        if not callable(make_cache) or not isinstance(made, Sequence) or not made:
            raise TypeError(
                "make_cache must be a function that returns a list of caches, one for each layer, "
                f"such as mlx-lm's make_prompt_cache(model) does; got {short(made)}"
            )
        self._make_cache = make_cache
        self._layout: Layout | None = None
        self.boundaries = Boundaries()
        self.pace = Pace()
        self.budgets = Budgets(self.store.settings, self._label, self.store.told, self.store)
        self._namespace = NOWHERE
        try:
            self._layout = layout = layout_of(made)
        except UnsupportedCache as error:
            self.unsupported_reason = unsupported(error)
            return
        self._namespace = make_namespace(
            **self._identity,
            layout=layout.signature,
            block_size=self.store.settings.block_size,
            codec=self._codec,
            label=self._label,
            groups=tuple(group.name for group in layout.groups),
        )

    def fresh_cache(
        self, kv_bits: int | None = None, kv_group_size: int = DEFAULT_GROUP_SIZE
    ) -> list[Any]:
        """Return a new, empty prompt cache of the model, its KVCaches quantised when asked."""
        caches = list(self._make_cache())
        return caches if kv_bits is None else quantized(caches, kv_group_size, kv_bits)

    def scope(self, **options: Unpack[ScopeOptions]) -> Scope:
        """Return what restores and stores sequences of one kind, for servers without sessions.
        Raises TypeError for a keyword that is no option, ValueError for bits or a group size that
        MLX cannot pack."""
        unknown = options.keys() - ScopeOptions.__annotations__.keys()
        if unknown:
            # A misspelt salt would share one tenant's pages with all others.
            raise TypeError(f"unexpected keyword argument {', '.join(sorted(unknown))}")
        bits = options.get("kv_bits")
        group_size = options.get("kv_group_size", DEFAULT_GROUP_SIZE)
        codec = None
        if bits is not None:
            bits, group_size = check_packing(bits, group_size)
            # In the words of the `codec` setting.
            codec = f"affine{bits}" + ("" if group_size == 64 else f"g{group_size}")
        fresh, blank = partial(self.fresh_cache, bits, group_size), self._layout
        namespace, separates = self._namespace, (codec, options.get("salt"), options.get("extra"))
        if blank is not None:
            if bits is not None:
                blank = layout_of(fresh())
            if separates != (None, None, None):
                namespace = namespace.separated(*separates)
            namespace = self.store.register(namespace)
        return Scope(self, namespace, fresh, blank)

    def is_of(self, model: Any) -> bool:
        """Return whether a model has weights of this one's, as far as anybody knows."""
        own = self._model()
        return own is None or own is model or shares_weights(own, model)

    def with_caches(self, make_cache: Callable[[], list[Any]]) -> Self:
        """Return a cache of the same model whose prompt caches are made otherwise, for a run with
        `max_kv_size`, say: the weights are not read again."""
        other = copy.copy(self)
        other._use(make_cache)
        return other

    def clear(
        self, *, salt: str | bytes | None = None, extra: Mapping[str, str] | None = None
    ) -> int:
        """Delete all pages of this model under a salt, of earlier processes and quantised sessions
        too, and of every `extra` unless it names one; return their number. Waits for the disk."""
        if self.store.closed:
            return 0
        parts: dict[str, object] = {**self._identity, "salt": salt_digest(salt)}
        if extra is not None:
            parts["extra"] = named(extra)
        self.boundaries.clear()
        return sum(self.store.clear(digest) for digest in self.store.namespaces(parts))


def unsupported(error: Exception) -> str:
    return f"{reasons.UNSUPPORTED}:{error}"
