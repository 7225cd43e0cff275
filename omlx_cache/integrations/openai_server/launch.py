"""`omlx-cache run mlx-openai-server`: its own command, with this cache for its text models.

With a configuration of several models the server spawns a process for each, which imports
everything anew: there a function of this module runs first.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omlx_cache.store import BlockStore

NAME = "mlx-openai-server"
PACKAGE = "mlx-openai-server"
TESTED = ">=1.8.1,<1.9"


def place(open_store: Callable[[], "BlockStore"]) -> None:
    """Have text models' handlers keep their prompts in the store that `open_store` opens, in this
    process and in those that the server spawns. Imports no MLX: the parent of those has none."""
    from app import server
    from app.core import handler_process

    create = server.create_handler_from_config

    def create_handler_from_config(model_cfg: Any) -> Any:
        handler = create(model_cfg)
        if handler.handler_type == "lm":
            from omlx_cache.integrations.openai_server import install

            install(handler, open_store())
        return handler

    server.create_handler_from_config = create_handler_from_config
    handler_process._handler_worker = partial(spawned, open_store)


def spawned(open_store: Callable[[], "BlockStore"], *arguments: Any) -> None:
    """Run a handler's process, with the cache in place; called in that process."""
    from app.core import handler_process

    worker = handler_process._handler_worker
    place(open_store)
    worker(*arguments)


def main(arguments: Sequence[str]) -> None:
    """Run the server's command with its own arguments until it is interrupted."""
    from app.cli import cli

    sys.argv = [NAME, *arguments]
    cli(prog_name=NAME)
