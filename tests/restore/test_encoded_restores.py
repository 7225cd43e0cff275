"""Pages that went through a codec: the same bits on the way of a CPU and of a GPU."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omlx_cache.arrays.mlxio import host_views
from omlx_cache.restore import reading
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.figures import BLOCK_SIZE, Size

BLOCKS = 4
CODECS = ["affine8", "k8v4", "turbo4", "turbo3"]


class Stored:
    """KV in a store's memory; the pages of the blocks in `spoiled` could not be encoded."""

    def __init__(
        self, directory: Path, codec: str, layers: int = 3, spoiled: tuple[int, ...] = ()
    ) -> None:
        size = Size("test", layers, 2, 64, BLOCKS * BLOCK_SIZE, 1, 0, 0, 0)
        self._bed = Bed(size, directory, codec=codec, hot_cache_only=True)
        self.stack = ExitStack()
        self.stack.enter_context(self._bed.store)
        live = self._bed.live_arrays()
        for keys, _ in live:
            for block in spoiled:
                keys[0, 0, block * BLOCK_SIZE + 9, 3] = float("inf")
        self._bed.commit(self._bed.filled(live))

    def restored(self) -> list[np.ndarray[Any, Any]]:
        with self._bed.restore() as session:
            caches = session.prompt_cache
            return [host_views([a])[0].copy() for c in caches for a in (c.keys, c.values)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("spoiled", [(), (0,), (1, 2), (3,)], ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_both_executors_restore_the_same_bits_and_zeros_behind_them(
    tmp_path: Path,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    codec: str,
    spoiled: tuple[int, ...],
) -> None:
    stored = Stored(tmp_path, codec, spoiled=spoiled)
    stack.enter_context(stored.stack)
    on_host = stored.restored()
    monkeypatch.setattr(reading, "on_host", lambda: False)
    on_device = stored.restored()
    tokens = BLOCKS * BLOCK_SIZE
    for left, right in zip(on_host, on_device, strict=True):
        assert left.shape[2] > tokens
        assert np.array_equal(left[:, :, :tokens], right[:, :, :tokens])
        # Either sign of a zero is one.
        assert not (left[:, :, tokens:] & 0x7FFF).any()
        assert not (right[:, :, tokens:] & 0x7FFF).any()
