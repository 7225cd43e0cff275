"""Putting the cache into what of mlx-vlm exists already: a generator, or its server."""

from typing import Any

from omlx_cache.integrations.mlx_vlm.manager import ApcManager
from omlx_cache.integrations.mlx_vlm.placing import around, model_name, place, use_generator
from omlx_cache.store import BlockStore


def install(
    target: Any, store: BlockStore, *, model: Any = None, model_id: str | None = None
) -> ApcManager:
    """Put the cache into a BatchGenerator, a ResponseGenerator or a ServerRuntime, and return it.

    Call it before the first request. A ResponseGenerator is waited for until its model is loaded.
    A BatchGenerator knows its language model only: `model` is the whole one, without which prompts
    with images are kept for this generator alone. A runtime has it in what it has loaded, and
    loads from now on. The store stays the caller's to close. Raises TypeError for another target.
    """
    if hasattr(target, "_unprocessed_sequences") and hasattr(target, "kv_bits"):
        return _into_generator(target, store, model, model_id)
    if hasattr(target, "wait_until_ready") and hasattr(target, "apc_manager"):
        return _into_responses(target, store, model_id)
    if hasattr(target, "response_generator") and hasattr(target, "model_cache"):
        return _into_runtime(target, store, model_id)
    raise TypeError(
        "install(target, store) takes mlx_vlm's BatchGenerator, ResponseGenerator or "
        f"ServerRuntime, not {type(target).__name__}"
    )


def _into_generator(
    generator: Any, store: BlockStore, model: Any, model_id: str | None
) -> ApcManager:
    from omlx_cache.integrations.mlx_vlm.generator import attach

    manager = ApcManager(store, whole=lambda inner: around(model, inner), model_id=model_id)
    attach(generator, manager)
    return manager


def _into_responses(generator: Any, store: BlockStore, model_id: str | None) -> ApcManager:
    generator.wait_until_ready()
    use_generator()
    manager = ApcManager(
        store,
        whole=lambda inner: around(generator.model, inner),
        model_id=model_id or model_name(generator.model_path),
    )
    generator.apc_manager = manager
    # What a request's hash is made for: the worker asks for the mode when it loads.
    generator.apc_mode = generator.apc_mode or "block"
    return manager


def _into_runtime(runtime: Any, store: BlockStore, model_id: str | None) -> ApcManager:
    place(lambda: store)
    generator = runtime.response_generator
    if generator is None:
        return ApcManager(store, model_id=model_id)
    manager = _into_responses(generator, store, model_id)
    runtime.apc_manager = manager
    loaded = runtime.model_cache.for_kind()
    if loaded.get("response_generator") is generator:
        loaded["apc_manager"] = manager
    return manager
