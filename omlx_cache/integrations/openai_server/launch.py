"""`omlx-cache run mlx-openai-server`, with this cache for its text models. Of several models each
has a spawned process, which imports everything anew: there `spawned` runs first."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from omlx_cache.integrations.host_server import OPENAI_SERVER as HOST
from omlx_cache.integrations.launching import OpenStore, put


def place(open_store: OpenStore) -> None:
    """Have text models' handlers keep their prompts in a store, in this process and in the ones
    that the server spawns. Imports no MLX: their parent has none."""
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
    from app.core import handler_process

    worker = handler_process._handler_worker
    place(open_store)
    worker(*arguments)


def main(arguments: Sequence[str]) -> None:
    from app.cli import cli

    sys.argv = [HOST.name, *arguments]
    cli(prog_name=HOST.name)
