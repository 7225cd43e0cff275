"""PrefixCache: one model's view of a store."""

from collections.abc import Sequence
from typing import Unpack

from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache.begun import DEFAULT_NEW_TOKENS, Begun, listed
from omlx_cache.results import Lookup, PageLocation
from omlx_cache.scopes import ScopeOptions, Scopes
from omlx_cache.session import Session
from omlx_cache_storage.interrupts import deferred
from omlx_cache_storage.keys import as_tokens
from omlx_cache_storage.prefetch import Prefetch


class PrefixCache(Scopes):
    """Sessions, look-ups and prefetches for one model; evaluates samples of its weights once,
    and on a GPU computes one token, to compile a TurboQuant codec's kernels for it: seconds, the
    first time on a machine.

    `model_id` names the model for people; `adapter` is part of its identity (a directory is
    fingerprinted). `make_cache` replaces mlx-lm's `make_prompt_cache(model)`, `policy` the rule
    for restore points, `codec_policy` the `codec` settings. The weights must not change while the
    object lives: make a new one after loading an adapter.

    Methods that look at sequences take the keywords of `ScopeOptions`: `salt` and `extra`, which
    separate tenants, `kv_bits` and `kv_group_size`.

    A model with a cache class that no adapter reads gets sessions that miss, and stores nothing:
    `unsupported_reason` names the class.
    """

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
        with deferred:
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
        on the model's thread. Raises for no request: TypeError and ValueError are for options that
        are none.
        """
        with deferred:
            begun = Begun(self.scope(**options), tokens, max_new_tokens)
            begun.start()
            return begun

    def lookup(self, tokens: Sequence[int], **options: Unpack[ScopeOptions]) -> Lookup:
        """Return where a prefix lies, page by page, and why it ends there. Reads no payload, moves
        nothing.

        Raises ValueError for tokens that are not integers.
        """
        scope = self.scope(**options)
        array = as_tokens(tokens)
        if not scope.supported:
            return Lookup(0, 0, self.unsupported_reason, ())
        chain = scope.chain(array)
        point = scope.find(chain, max(0, len(array) - 1))
        walked = scope.walked(chain, point.matched, point.lacking)
        told = self.store.requests.explainer.explain(
            walked, len(array), point.position, point.reason
        )
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
        return Lookup(point.position, point.matched, point.reason, pages, told)

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
