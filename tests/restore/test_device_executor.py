"""The executor for GPUs, on the CPU back end: it fills every target, whatever its batch."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from kit.plain import DIM, PlainChain, expected
from omlx_cache.restore.device import join_on_device
from omlx_cache.restore.host import HostTargets
from omlx_cache.restore.lookup import PageUse
from omlx_cache.restore.plan import Geometry, PageRead, Plan, Span, Stretch
from omlx_cache_storage.page import Page, PageId, PageInfo, Tensors

BLOCKS, ROOM = 5, 8


def plan_of(chain: PlainChain, pages: list[Page]) -> Plan:
    """The plan that puts whole pages behind each other, with room to grow."""
    tokens = BLOCKS * chain.size + ROOM
    specs = pages[0].meta.tensors
    tracks = {spec.name: 0 for spec in specs}
    stretch = Stretch(0, tuple(tracks), specs[0].dtype, specs[0].shape, 0, specs[0].nbytes)
    geometry = Geometry(Tensors(specs), (stretch,), 1)
    targets = {s.name: replace(s, shape=(*s.shape[:2], tokens, DIM)) for s in specs}
    reads = []
    for page in pages:
        meta = page.meta
        info = PageInfo(meta.position, meta.held, meta.nbytes, "hot")
        span = Span(0, 0, meta.held, meta.position - meta.held)
        reads.append(PageRead(PageUse(meta.id, info), geometry, (span,)))
    return Plan(BLOCKS * chain.size, targets, tracks, reads, (), {}, False)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("heads", [1, 2])
def test_every_row_of_a_batch_is_restored(batch: int, heads: int) -> None:
    chain = PlainChain(BLOCKS)
    pages = [chain.page(n, batch=batch, heads=heads) for n in range(1, BLOCKS + 1)]
    plan = plan_of(chain, pages)
    held: dict[PageId, Page] = {page.meta.id: page for page in pages}
    on_device = join_on_device(plan, held)
    targets = HostTargets(plan)
    for read in plan.reads:
        assert targets.take(read, held[read.use.page])
    for name, array in targets.arrays().items():
        right = expected(name, (batch, heads, plan.position, DIM), 0)
        for made in (array, on_device[name]):
            assert made.shape[0] == batch
            assert np.array_equal(np.array(made)[:, :, : plan.position], right)
            assert not mx.any(made[:, :, plan.position :]).item()
