"""`omlx-cache run mlx_vlm.server`: its own command, with this cache for what it loads."""

import sys
from collections.abc import Sequence
from importlib import import_module

from omlx_cache.integrations.mlx_vlm.placing import place

__all__ = ["NAME", "PACKAGE", "TESTED", "main", "place"]

NAME = "mlx_vlm.server"
PACKAGE = "mlx-vlm"
TESTED = "==0.7.10"


def main(arguments: Sequence[str]) -> None:
    """Run the server's own command; returns or raises SystemExit as it does."""
    sys.argv = [NAME, *arguments]
    import_module("mlx_vlm.server").main()
