"""`omlx-cache run mlx-openai-server`: its own command, with this cache for its text models.

With a configuration of several models the server spawns a process for each, which imports
everything anew: there a function of this module runs first.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from omlx_cache.integrations.launching import OpenStore, put
from omlx_cache.integrations.openai_server.host import HOST


def place(open_store: OpenStore) -> None:
    """Have text models' handlers keep their prompts in the store that `open_store` opens, in this
    process and in the ones that the server spawns. Imports no MLX: their parent has none."""
    from app import server
    from app.core import handler_process

    create = server.create_handler_from_config

    def create_handler_from_config(model_cfg: Any) -> Any:
        handler = create(model_cfg)
        if handler.handler_type == "lm":
            from omlx_cache.integrations.openai_server import install

            put(install, handler, open_store)
        return handler

    server.create_handler_from_config = create_handler_from_config
    handler_process._handler_worker = partial(spawned, open_store)


def spawned(open_store: OpenStore, *arguments: Any) -> None:
    """Run a handler's process, with the cache in place; called in that process."""
    from app.core import handler_process

    worker = handler_process._handler_worker
    place(open_store)
    worker(*arguments)


def main(arguments: Sequence[str]) -> None:
    """Run the server's command with its own arguments until it is interrupted."""
    from app.cli import cli

    sys.argv = [HOST.name, *arguments]
    cli(prog_name=HOST.name)
