"""Where mlx-vlm's server makes its cache and its generators, and names both itself."""

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from omlx_cache.integrations import naming
from omlx_cache.integrations.mlx_vlm.manager import ApcManager
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)


def place(open_store: Callable[[], BlockStore]) -> None:
    """Have every text model that the server loads from now on use this cache: no argument reaches
    the place where it makes its own. Imports the server's modules."""
    runtime = import_module("mlx_vlm.server.runtime").runtime

    def whole(language_model: Any) -> Any:
        return around(getattr(runtime.response_generator, "model", None), language_model)

    def from_env(model_namespace: str | None = None, overrides: Any = None) -> ApcManager | None:
        path = (model_namespace or "").split("#")[0]
        try:
            store = open_store()
        except Exception:
            _log.exception("the store cannot be opened: prompts are computed without a cache")
            return None
        return ApcManager(store, whole=whole, model_id=model_name(path))

    apc: Any = import_module("mlx_vlm.apc")
    apc.from_env = from_env
    use_generator()


def use_generator() -> None:
    """Have the server's worker make generators that know an ApcManager. With another manager they
    are what they were."""
    from omlx_cache.integrations.mlx_vlm.generator import CachedBatchGenerator

    generation: Any = import_module("mlx_vlm.server.generation")
    generation.BatchGenerator = CachedBatchGenerator


def around(model: Any, language_model: Any) -> Any:
    """Return a model when it is the one around a language model, else None."""
    inner = getattr(model, "language_model", model)
    return model if model is not None and inner is language_model else None


def model_name(path: str | None) -> str | None:
    """Return what names a model for people; None for one that has no path."""
    return naming.model_name(path) or None
