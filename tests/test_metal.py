"""What only a Mac runs; `python -m pytest -m metal -v` lists it, and runs it there."""

import itertools
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_cache.codecs import turbo, turbo_fused, turbo_source
from omlx_cache.codecs.turbo import TurboCodec
from omlx_cache.upkeep.memory import Level, reader
from omlx_cache_daemon.checking import PIECE_BYTES, pass_cache_by, read_from_disk

pytestmark = [
    pytest.mark.metal,
    pytest.mark.skipif(not mx.metal.is_available(), reason="needs Metal: a Mac"),
]


@pytest.mark.parametrize(
    ("dim", "bits"), list(itertools.product(turbo_source.DIMS, turbo_source.BITS))
)
def test_fused_kernels_of_turboquant_have_the_plain_forms_bits(dim: int, bits: int) -> None:
    codec = TurboCodec(dim, bits)
    x = mx.random.normal((1, 2, 24, dim), key=mx.random.key(3)).astype(mx.bfloat16)
    norms, words = turbo._encode(codec, x)
    parts = codec.encode(x)
    assert mx.array_equal(parts["norms"], norms.astype(mx.float16))
    assert mx.array_equal(parts["indices"], words)
    dense = turbo._decode(codec, mx.bfloat16, parts["norms"], words)
    assert mx.array_equal(codec.decode(parts, mx.bfloat16), dense)
    form = turbo_fused.Form(dim, bits, mx.bfloat16)
    used = [kernel for (_, made), kernel in turbo_fused._FOUND.items() if made[:3] == form[:3]]
    assert len(used) == 2, "one to encode and one to decode"
    if not all(used):
        pytest.skip("a fused kernel has other bits here: the plain form is used in its place")


def test_macos_tells_its_memory_pressure() -> None:
    assert isinstance(reader()().verdict, Level)


def test_reads_by_f_nocache_have_the_files_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (PIECE_BYTES // 256) + b"more")
    with path.open("rb") as file:
        assert pass_cache_by(file.fileno())
        assert read_from_disk(file.fileno()) == path.read_bytes()
