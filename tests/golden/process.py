"""`contract.worker` on a machine that never changes: the names of its processor and the versions of
MLX and mlx-lm are made up, so that namespaces are the same wherever this runs.

The standard library is told so before the product is imported; no name of the product is touched.
Nothing is computed (`contract.arithmetic`), so the bits are the same, too.
"""

import importlib.metadata
import platform

import mlx.core as mx

MACHINE = "golden"
VERSIONS = {"mlx": "0.0.1", "mlx-lm": "0.0.2"}

_version = importlib.metadata.version


def pretend() -> None:
    """Be the golden machine from now on; before `omlx_cache` is imported."""
    mx.set_default_device(mx.cpu)
    platform.machine = lambda: MACHINE
    importlib.metadata.version = lambda name: VERSIONS.get(name) or _version(name)


if __name__ == "__main__":
    pretend()
    from contract.worker import main

    main()
