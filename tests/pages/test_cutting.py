"""Pages cut from live arrays: the same bytes however MLX computes, owned by the page alone."""

import gc
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx_cache.adapters.base import TokenRange
from omlx_cache.arrays.mlxio import NAMES, host_views
from omlx_cache.pages import cut as cutting
from omlx_cache.pages.cut import Cutter, Source
from omlx_cache.pages.layout import file_order
from omlx_cache_storage.page import TensorSpec

HELD = (TokenRange(0, 4), TokenRange(20, 30), TokenRange(10, 20))
"""A ring: the sinks, the newest tokens, the oldest."""


def drawn(seed: int, heads: int, tokens: int, dim: int, dtype: Any = mx.bfloat16) -> mx.array:
    return (mx.random.normal((1, heads, tokens, dim), key=mx.random.key(seed)) * 100).astype(dtype)


def sources() -> list[Source]:
    """A copied segment, and rings of several shapes and dtypes, one of them with slack."""
    live = {
        "0.keys": drawn(1, 2, 24, 8),
        "0.values": drawn(2, 2, 24, 4),
        "1.keys": drawn(3, 2, 40, 8),
        "1.values": drawn(4, 2, 40, 4),
        "2.keys": drawn(5, 1, 24, 0),
        "2.values": drawn(6, 1, 24, 3, mx.uint8),
        "3.keys": drawn(7, 1, 24, 5, mx.float32),
    }
    segment = {name: drawn(9, a.shape[1], 3, a.shape[3], a.dtype) for name, a in live.items()}
    return [
        Source(segment, dict.fromkeys(segment, (TokenRange(8, 11),))),
        Source(live, dict.fromkeys(live, HELD)),
    ]


def bytes_of(name: str, span: TokenRange, from_: list[Source]) -> np.ndarray:
    """The tokens of one tensor, taken one by one from the first source that has each."""
    columns = []
    for token in range(span.start, span.stop):
        for source in from_:
            order = [t for r in source.ranges[name] for t in range(r.start, r.stop)]
            if token in order:
                view = host_views([source.arrays[name]])[0]
                columns.append(view[:, :, order.index(token)])
                break
    return np.stack(columns, axis=2).reshape(-1).view(np.uint8)


@pytest.fixture(params=["host", "device"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Copies by NumPy, and by MLX operations as on a GPU."""
    if request.param == "device":
        monkeypatch.setattr(cutting, "on_host", lambda: False)
    return request.param


@pytest.mark.parametrize(
    "span", [TokenRange(0, 4), TokenRange(8, 12), TokenRange(9, 30), TokenRange(19, 21)]
)
def test_a_payload_has_every_tensor_in_file_order_and_every_token_in_its_place(
    way: str, span: TokenRange
) -> None:
    given = sources()
    cutter = Cutter(given)
    cut = cutter.tokens(span)
    assert cut is not None
    assert list(cut.tensors) == file_order(cut.tensors)
    assert {spec.name for spec in cut.tensors} == set(given[-1].arrays)
    first, second = cutter.payloads([cut, cut])
    expected = np.concatenate([bytes_of(spec.name, span, given) for spec in cut.tensors])
    assert cut.tensors.nbytes == expected.nbytes
    for payload in (first, second):
        assert (np.array(payload) == expected).all()


def test_what_is_not_held_is_not_cut(way: str) -> None:
    geometry = Cutter(sources())
    assert geometry.tokens(TokenRange(4, 9)) is None
    assert geometry.tokens(TokenRange(29, 31)) is None
    assert geometry.earliest(TokenRange(0, 30)) == 8
    assert geometry.earliest(TokenRange(25, 31)) == 31
    assert Cutter([Source({}, {})]).tokens(TokenRange(0, 1)) is None


def test_a_snapshot_is_every_array_as_it_is(way: str) -> None:
    arrays: Mapping[str, mx.array] = {
        "0.1": drawn(1, 2, 3, 4, mx.float32),
        "0.0": mx.array([[1, 2, 3]], dtype=mx.bfloat16),
        "1.0": mx.array([[4, 5, 6]], dtype=mx.bfloat16),
        "1.left": mx.array(7, dtype=mx.int32),
    }
    cutter = Cutter([Source(arrays, dict.fromkeys(arrays, ()))])
    cut = cutter.whole()
    specs = [TensorSpec(n, NAMES[a.dtype], tuple(a.shape)) for n, a in arrays.items()]
    assert list(cut.tensors) == file_order(specs)
    (payload,) = cutter.payloads([cut])
    views = [host_views([arrays[spec.name]])[0].reshape(-1).view(np.uint8) for spec in cut.tensors]
    assert (np.array(payload) == np.concatenate(views)).all()


def test_each_of_many_payloads_owns_its_memory(way: str) -> None:
    tokens, pages = 64, 16
    live = {f"{i}.keys": drawn(i, 4, tokens * pages, 64) for i in range(8)}
    cutter = Cutter([Source(live, dict.fromkeys(live, (TokenRange(0, tokens * pages),)))])
    cuts = [cutter.tokens(TokenRange(i * tokens, (i + 1) * tokens)) for i in range(pages)]
    payloads = cutter.payloads([cut for cut in cuts if cut is not None])
    nbytes = payloads[0].nbytes
    del cutter
    live.clear()
    gc.collect()
    before = mx.get_active_memory()
    del payloads[1:]
    gc.collect()
    assert before - mx.get_active_memory() == pytest.approx((pages - 1) * nbytes, rel=0.05)
