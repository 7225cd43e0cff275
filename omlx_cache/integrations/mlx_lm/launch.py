"""`omlx-cache run mlx_lm.server`: mlx-lm's own server, its LRUPromptCache replaced by ours."""

import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm import server

from omlx_cache.arrays.mlxio import check_packing
from omlx_cache.integrations.mlx_lm.lanes import QUANTIZED_KV_START
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.names import HostServer
from omlx_cache.integrations.naming import model_name
from omlx_cache.integrations.old_batches import batchable
from omlx_cache.integrations.padding import refuse_batches
from omlx_cache.mlx_lm_versions import TESTED, is_old
from omlx_cache.store import BlockStore

NAME = "mlx_lm.server"
HOST = HostServer(NAME, "mlx-lm", TESTED)

_log = logging.getLogger(__name__)


class RunPromptCache(TieredPromptCache):
    """Gives rows caches that a batch computes right, empty ones too, where the batches of this
    mlx-lm would make others of their own."""

    def fetch_nearest_cache(
        self, model: Any, tokens: Sequence[int]
    ) -> tuple[list[Any] | None, list[int]]:
        caches, rest = super().fetch_nearest_cache(model, tokens)
        if is_old():
            caches = batchable(caches or self.fresh(model)) or None
        return caches, rest


def place(open_store: Callable[[], BlockStore]) -> None:
    """Have the server's response generator take its prompts from the store that `open_store` opens.

    That generator is the one place where the server brings its models and its cache together. What
    a batch leaves is restored for requests alone, so a model whose states take a batch's padding
    for tokens is served one request at a time.
    """

    class CachedResponseGenerator(server.ResponseGenerator):  # type: ignore[misc]
        def __init__(self, model_provider: Any, prompt_cache: Any) -> None:
            if mx.distributed.init().size() > 1:
                # The ranks must restore the same prefix at the same time; their tiers may differ.
                _log.warning("more than one rank: the prompt cache is mlx-lm's own, in memory")
            else:
                prompt_cache = _prompt_cache(open_store(), model_provider)
            self._looked_at: Callable[[], Any] = lambda: None
            super().__init__(model_provider, prompt_cache)

        def _is_batchable(self, args: Any) -> bool:
            provider = self.model_provider
            if provider.model is not None and self._looked_at() is not provider.model:
                self._looked_at = weakref.ref(provider.model)
                refuse_batches(provider)
            return bool(super()._is_batchable(args))

    server.ResponseGenerator = CachedResponseGenerator


def main(arguments: Sequence[str]) -> None:
    """Run `mlx_lm.server` with its own arguments until it is interrupted."""
    sys.argv = [NAME, *arguments]
    server.main()


def _prompt_cache(store: BlockStore, provider: Any) -> RunPromptCache:
    """Return our cache for the server's flags; raises SystemExit for `--kv-bits` that MLX lacks."""
    flags = provider.cli_args
    # mlx-lm 0.31 has none of these three.
    bits = getattr(flags, "kv_bits", None)
    group = getattr(flags, "kv_group_size", 64)
    if bits is not None:
        try:
            check_packing(bits, group)
        except ValueError as error:
            raise SystemExit(f"{NAME}: {error}") from error
    if flags.model:
        store.add_label(model_name(flags.model))
    return RunPromptCache(
        store,
        provider,
        kv_bits=bits,
        kv_group_size=group,
        quantized_kv_start=getattr(flags, "quantized_kv_start", QUANTIZED_KV_START),
    )
