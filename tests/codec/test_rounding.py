import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from omlx_cache.codecs import turbo_tables
from omlx_cache.codecs.turbo_tables import Rounder


def around(boundaries: np.ndarray) -> np.ndarray:
    """Each boundary, its neighbours in float32, and values far outside."""
    near = [boundaries, np.nextafter(boundaries, -9), np.nextafter(boundaries, 9)]
    far = np.array([-9, -1, 0, 1, 9, -np.inf, np.inf], np.float32)
    return np.concatenate([*near, far]).astype(np.float32)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 512, 2048])
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_float_beside_a_codebooks_boundary_is_rounded_exactly(dim: int, bits: int) -> None:
    boundaries = turbo_tables.midpoints(turbo_tables.codebook(dim, bits))
    x = around(boundaries)
    found = np.array(Rounder(boundaries)(mx.array(x)))
    assert np.array_equal(found, np.searchsorted(boundaries, x))


@settings(max_examples=examples(40))
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=31, unique=True))
def test_any_boundaries_are_counted_exactly(drawn: list[float]) -> None:
    boundaries = np.sort(np.array(drawn, np.float32))
    x = around(boundaries)
    found = np.array(Rounder(boundaries)(mx.array(x)))
    assert np.array_equal(found, np.searchsorted(boundaries, x))


def test_nan_reads_nothing_outside_the_tables() -> None:
    boundaries = turbo_tables.midpoints(turbo_tables.codebook(128, 4))
    found = np.array(Rounder(boundaries)(mx.full((1000,), float("nan"))))
    assert found.max() <= 15
