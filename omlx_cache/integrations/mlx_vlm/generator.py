"""mlx-vlm's BatchGenerator, whose prompts are restored from a store and kept in it."""

import weakref
from typing import Any

from mlx_vlm.generate.ar import BatchGenerator

from omlx_cache.integrations.mlx_vlm.coordinator import StoreCoordinator
from omlx_cache.integrations.mlx_vlm.form import form_of
from omlx_cache.integrations.mlx_vlm.manager import ApcManager
from omlx_cache.integrations.mlx_vlm.media import with_media


class CachedBatchGenerator(BatchGenerator):  # type: ignore[misc]
    """BatchGenerator's arguments; with an ApcManager as `apc_manager` its prompts are kept in that
    manager's store. With another manager, or none, it is its base class."""

    def __init__(self, *args: Any, apc_manager: Any = None, **options: Any) -> None:
        ours = isinstance(apc_manager, ApcManager)
        super().__init__(*args, apc_manager=None if ours else apc_manager, **options)
        if ours:
            attach(self, apc_manager)


def attach(generator: Any, manager: ApcManager) -> None:
    """Have a BatchGenerator that has computed nothing yet use a manager; evaluates samples of the
    model's weights when the manager has not seen it."""
    sequences = manager.bind(generator.model, form_of(generator))
    plain = (
        generator.kv_bits is None
        and generator.draft_model is None
        and hasattr(generator.model, "make_cache")
    )
    generator.apc = StoreCoordinator(manager, generator.model, sequences, plain=plain)
    generator.apc_manager = manager
    generator.apc_mode = generator.apc.legacy_mode
    own, alive = type(generator)._apc_extra_hash, weakref.ref(generator)
    generator._apc_extra_hash = lambda asked: with_media(own(alive(), asked), asked or {})
