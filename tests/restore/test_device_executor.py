"""The executor for GPUs, on the CPU back end: it fills every target, in little memory."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from kit.executors import compute_on
from kit.plain import DIM, PlainChain, expected
from omlx_cache.arrays.mlxio import payload_view
from omlx_cache.pages.encoding import cold_encoder
from omlx_cache.restore.device import DeviceTargets
from omlx_cache.restore.host import HostTargets
from omlx_cache.restore.lookup import PageUse
from omlx_cache.restore.plan import PageRead, Plan, ReadGeometry, Span, Stretch
from omlx_cache.restore.reading import READ_AHEAD
from omlx_cache.store import READ_THREADS
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.figures import BLOCK_SIZE, Size
from omlx_cache_storage.page import Page, PageId, PageInfo, Tensors

BLOCKS, ROOM = 5, 8


def plan_of(chain: PlainChain, pages: list[Page]) -> Plan:
    """The plan that puts whole pages behind each other, with room to grow."""
    tokens = BLOCKS * chain.size + ROOM
    specs = pages[0].meta.tensors
    tracks = {spec.name: 0 for spec in specs}
    stretch = Stretch(0, tuple(tracks), specs[0].dtype, specs[0].shape, 0, specs[0].nbytes)
    geometry = ReadGeometry(Tensors(specs), (stretch,), 1)
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
    joined = DeviceTargets(plan)
    joined.take_all(plan.reads, held)
    on_device = joined.arrays()
    targets = HostTargets(plan)
    for read in plan.reads:
        targets.take_all([read], held)
    for name, array in targets.arrays().items():
        right = expected(name, (batch, heads, plan.position, DIM), 0)
        for made in (array, on_device[name]):
            assert made.shape[0] == batch
            assert np.array_equal(np.array(made)[:, :, : plan.position], right)
            assert not mx.any(made[:, :, plan.position :]).item()


@pytest.mark.parametrize("hot", [True, False], ids=["hot", "cold"])
def test_a_restore_takes_a_part_of_itself_beside_what_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot: bool
) -> None:
    """A batch of pages and a group of tensors, never all of them; read ahead it has some pages."""
    compute_on("device", monkeypatch)
    size = Size("test", 16, 2, 64, 64 * BLOCK_SIZE, 1, 0, 0, 0)
    bed = Bed(size, tmp_path)
    with bed.store:
        bed.commit(bed.filled(bed.live_arrays()))
        assert bed.store.flush(60)
        if hot:
            assert peak_of(bed) < 1.2 * size.kv_bytes
    if not hot:
        bed = Bed(size, tmp_path, hot=False)
        with bed.store:
            ahead = READ_AHEAD + READ_THREADS
            assert peak_of(bed) < (1.2 + ahead / 64) * size.kv_bytes


def peak_of(bed: Bed) -> int:
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with bed.restore() as session:
        assert session.cached_tokens == bed.size.tokens
        return mx.get_peak_memory() - before


def test_the_writer_reads_a_copy_of_a_page_that_a_device_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute_on("device", monkeypatch)
    page = PlainChain(1).page(1)
    for name in ("dense", "zstd"):
        encode = cold_encoder(name, 0)
        assert encode is not None
        written = encode(page)
        if name == "dense":
            assert np.array_equal(payload_view(written.payload), payload_view(page.payload))
            assert not np.shares_memory(payload_view(written.payload), payload_view(page.payload))
