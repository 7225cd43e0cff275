"""A session whose pages cannot be decoded here computes instead, and leaves the files alone."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kit.storage import files_in
from omlx_cache import BlockStore, PrefixCache, reasons
from omlx_cache_storage.format import planes

OpenStore = Callable[..., BlockStore]
pytestmark = pytest.mark.skipif(not planes.available(), reason="no zstd is installed")


def _prefill(model: Any, cache: PrefixCache, tokens: list[int]) -> tuple[int, str | None]:
    with cache.session(tokens) as session:
        for chunk in session.prefill_chunks(256):
            mx.eval(model(mx.array([chunk]), cache=session.prompt_cache))
        session.commit()
        return session.cached_tokens, session.miss_reason


def test_without_zstd_a_restore_is_a_miss_with_its_own_reason_and_no_file_goes(
    model: Any, open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[int] = np.random.default_rng(3).integers(0, 256, 8 * 64).tolist()
    with open_store(cold_codec="zstd") as store:
        _prefill(model, PrefixCache(model, store), tokens)
        assert store.flush()
    files = files_in(tmp_path)
    assert len(files) == 8
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "zstandard", None)
        without.setitem(sys.modules, "compression.zstd", None)
        with open_store(write_policy="lazy") as store:
            assert _prefill(model, PrefixCache(model, store), [*tokens, 1]) == (
                0,
                reasons.UNDECODABLE,
            )
            assert store.stats().requests.misses[reasons.UNDECODABLE]
            assert files_in(tmp_path) == files
    with open_store() as store:
        restored, _ = _prefill(model, PrefixCache(model, store), [*tokens, 1])
        assert restored == len(tokens)
