"""mlx-openai-server with this cache. The server's own process has no MLX when it spawns one for
each model: so names are imported when they are first used."""

from typing import TYPE_CHECKING

from omlx_cache.package import on_first_use

if TYPE_CHECKING:
    from omlx_cache.integrations.openai_server.prompt_cache import HandlerPromptCache, install

__all__ = ["HandlerPromptCache", "install"]

__getattr__ = on_first_use(__name__, dict.fromkeys(__all__, ".prompt_cache"))
