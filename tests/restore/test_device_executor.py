"""The executor for GPUs, on the CPU back end: it fills every target, in little memory."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from kit.executors import compute_on
from kit.plain import PlainChain
from omlx_cache.arrays.mlxio import payload_view
from omlx_cache.pages.encoding import cold_encoder
from omlx_cache.restore.reading import READ_AHEAD
from omlx_cache.store import READ_THREADS
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.figures import BLOCK_SIZE, Size


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
