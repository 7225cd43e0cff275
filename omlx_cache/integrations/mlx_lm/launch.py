"""The seam into mlx-lm's server: where this cache goes in.

`mlx_lm.server`'s own `main` parses its flags and makes its ModelProvider. It calls `run`, which is
replaced: `serving` answers there, with a subclass of its ResponseGenerator and of its APIHandler.
That generator names its BatchGenerator itself, and replaces this name too.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from omlx_cache.integrations.host_server import MLX_LM as HOST


def place(open_store: Callable[[], Any], **options: Any) -> None:
    """Have mlx-lm's server answer with a store; `options` are those of `Serving`."""
    # Imported here, once the names are known to be there.
    from omlx_cache.integrations.mlx_lm.serving import Serving, serve

    server: Any = import_module(HOST.name)
    server.run = partial(serve, open_store, Serving(**options), server.run)


def main(arguments: Sequence[str]) -> None:
    """Run `mlx_lm.server` with its own arguments; raises SystemExit with the exit code."""
    sys.argv = [HOST.name, *arguments]
    import_module(HOST.name).main()
