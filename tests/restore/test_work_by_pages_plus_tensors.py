"""What a restore costs the host grows with pages and with tensors, not with their product. Counted,
not timed."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from kit.work import calls_of
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.figures import BLOCK_SIZE, Size

PAGES, LAYERS = 16, 4


class OnThisThread(Executor):
    """Runs what it is given at once, where it can be counted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def effort(directory: Path, tier: str, pages: int, layers: int) -> int:
    """Return the calls of a restore of so many small pages."""
    size = Size("", layers, 1, 1, pages * BLOCK_SIZE, 1, 0, 0, 0)
    directory = directory / f"{pages} pages of {layers} layers"
    bed = Bed(size, directory, durability="none")
    with bed.store:
        bed.commit(bed.filled(bed.live_arrays()))
        assert bed.store.flush(60)
        if tier == "hot":
            return counted(bed)
    bed = Bed(size, directory, hot=False, durability="none")
    with bed.store:
        return counted(bed)


def counted(bed: Bed) -> int:
    pools = bed.store.copy_pool, bed.store.read_pool
    bed.store.copy_pool = bed.store.read_pool = OnThisThread()  # type: ignore[assignment]
    try:
        # What is read of a geometry once, not once for each page, is known after the first.
        bed.restore()
        return calls_of(bed.restore)
    finally:
        bed.store.copy_pool, bed.store.read_pool = pools


@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_a_page_costs_as_much_in_a_model_of_twice_the_layers(tier: str, tmp_path: Path) -> None:
    def of_a_page(layers: int) -> float:
        few, many = (effort(tmp_path, tier, pages, layers) for pages in (PAGES, 2 * PAGES))
        return (many - few) / PAGES

    assert of_a_page(2 * LAYERS) <= 1.1 * of_a_page(LAYERS)
