"""`omlx-cache run mlx_vlm.server`, with this cache for each model that it loads; and `install`."""

import logging
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from omlx_cache.integrations.host_server import MLX_VLM as HOST
from omlx_cache.integrations.lanes import model_name
from omlx_cache.integrations.launching import OpenStore
from omlx_cache.store import BlockStore

if TYPE_CHECKING:
    from omlx_cache.integrations.mlx_vlm.manager import ApcManager

_log = logging.getLogger(__name__)


def place(open_store: OpenStore) -> None:
    """Have every text model that the server loads from now on use this cache: no argument reaches
    the place where it makes its own."""
    from omlx_cache.integrations.mlx_vlm.manager import ApcManager

    runtime = import_module("mlx_vlm.server.runtime").runtime
    apc: Any = import_module("mlx_vlm.apc")
    own = apc.from_env

    def whole(language_model: Any) -> Any:
        return around(getattr(runtime.response_generator, "model", None), language_model)

    def from_env(model_namespace: str | None = None, overrides: Any = None) -> Any:
        try:
            return ApcManager(
                open_store(),
                whole=whole,
                model_id=model_name((model_namespace or "").split("#")[0]),
                own=partial(own, model_namespace, overrides),
            )
        except Exception:
            _log.exception("the store cannot be used: the server keeps its own cache")
            return own(model_namespace, overrides)

    apc.from_env = from_env
    _use_generator()


def _use_generator() -> None:
    """Have the server's worker make generators that know an ApcManager."""
    from omlx_cache.integrations.mlx_vlm.generator import ApcBatchGenerator

    generation: Any = import_module("mlx_vlm.server.generation")
    generation.BatchGenerator = ApcBatchGenerator


def main(arguments: Sequence[str]) -> None:
    sys.argv = [HOST.name, *arguments]
    import_module("mlx_vlm.server").main()


def around(model: Any, language_model: Any) -> Any:
    """Return the model if it is the one around a language model, else None."""
    inner = getattr(model, "language_model", model)
    return model if model is not None and inner is language_model else None


def install(
    target: Any, store: BlockStore, *, model: Any = None, model_id: str | None = None
) -> "ApcManager | None":
    """Put the cache into a BatchGenerator, a ResponseGenerator or a ServerRuntime, and return it.

    Call it before the first request. It waits until a ResponseGenerator's model is loaded. A
    BatchGenerator knows its language model only: `model` is the whole one, without which prompts
    with images are kept for this generator alone. A runtime has the cache in all models that it has
    loaded or loads from now on. The store stays the caller's to close.

    None, and a line of the log, where this version cannot have the cache; with the setting
    `require` raises UnusableHost instead, and TypeError for another target.
    """
    is_generator = hasattr(target, "_unprocessed_sequences") and hasattr(target, "kv_bits")
    is_runtime = hasattr(target, "response_generator") and hasattr(target, "model_cache")
    is_worker = hasattr(target, "wait_until_ready") and hasattr(target, "apc_manager")
    if not (is_generator or is_runtime or is_worker):
        raise TypeError(
            "install(target, store) takes mlx_vlm's BatchGenerator, ResponseGenerator or "
            f"ServerRuntime, not {type(target).__name__}"
        )
    if not HOST.is_complete(require=store.settings.require):
        return None
    from omlx_cache.integrations.mlx_vlm.generator import attach
    from omlx_cache.integrations.mlx_vlm.manager import ApcManager

    if is_generator:
        manager = ApcManager(store, whole=lambda inner: around(model, inner), model_id=model_id)
        return manager if attach(target, manager) else None
    if is_worker:
        return _into_worker(target, store, model_id)
    place(lambda: store)
    worker = target.response_generator
    if worker is None:
        return ApcManager(store, model_id=model_id)
    target.apc_manager = manager = _into_worker(worker, store, model_id)
    loaded = target.model_cache.for_kind()
    if loaded.get("response_generator") is worker:
        loaded["apc_manager"] = manager
    return manager


def _into_worker(worker: Any, store: BlockStore, model_id: str | None) -> "ApcManager":
    from omlx_cache.integrations.mlx_vlm.manager import ApcManager

    worker.wait_until_ready()
    _use_generator()
    own = worker.apc_manager
    worker.apc_manager = manager = ApcManager(
        store,
        whole=lambda inner: around(worker.model, inner),
        model_id=model_id or model_name(worker.model_path),
        own=lambda: own,
    )
    # The mode for which a request's hash is made: the worker asks for it when it loads.
    worker.apc_mode = worker.apc_mode or "block"
    return manager
