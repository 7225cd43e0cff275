"""mlx-openai-server with this cache: what its scheduler and handler call for prompts.

A name is imported when it is first used: the server's own process has no MLX when it spawns one
for each model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omlx_cache.integrations.openai_server.prompt_cache import HandlerPromptCache, install

__all__ = ["HandlerPromptCache", "install"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.prompt_cache"), name)
