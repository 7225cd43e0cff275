"""Chains of elementwise operations, fused into one kernel where that pays: on GPUs.

On the CPU nothing is gained, and MLX would need a C++ compiler at run time.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from omlx_cache.mlxio import on_host

Chain = Callable[[mx.array], mx.array]


def elementwise(chain: Chain) -> Chain:
    """Return a lazy function that applies `chain` to each element: same bits, fewer kernels.

    `chain` maps an array to one of its shape by elementwise operations and scalars alone. It is
    traced once for all shapes: tracing anew for each token count costs more than it saves.
    """
    fused: Chain = mx.compile(chain, shapeless=True)

    def apply(x: mx.array) -> mx.array:
        if on_host():
            return chain(x)
        return fused(x.reshape(-1)).reshape(x.shape)

    return apply
