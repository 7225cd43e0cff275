"""Versions of mlx-lm: which are refused and how, and what is done for old ones."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)

from kit.versions import BEFORE_0_32
from omlx_cache import BlockStore, PrefixCache, UnsupportedCache, mlx_lm_versions
from omlx_cache.adapters.kv import ChunkedKVCacheAdapter
from omlx_cache.integrations import probe
from omlx_cache.integrations.batch import CachedBatchGenerator
from omlx_cache.integrations.host_server import UnusableHost
from omlx_cache.integrations.rows import batchable
from omlx_cache.mlx_lm_versions import UntestedVersion, check, is_old

from .conftest import model_of


@pytest.mark.parametrize("version", ["0.31.3", "0.32.0rc1", "0.32.2", "0.32.99.dev20270101"])
def test_a_tested_version_is_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_lm, "__version__", version)
    check("it")


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "0.33.0.dev1", "1.0", "unknown"])
def test_another_version_is_refused_in_words(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_lm, "__version__", version)
    with pytest.raises(UntestedVersion) as refused:
        check("omlx-cache serve")
    assert str(refused.value) == (
        "omlx-cache serve is tested with mlx-lm >=0.31.3,<0.33, and "
        f"mlx-lm {version} is installed: pip install 'mlx-lm>=0.31.3,<0.33'"
    )


def test_a_batch_of_an_untested_version_is_tried_when_it_is_made(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("qwen3")
    generator, cache = BatchGenerator(model), PrefixCache(model, store)
    monkeypatch.setattr(mlx_lm, "__version__", "0.33.0")
    assert len(CachedBatchGenerator(generator, cache)) == 0
    monkeypatch.setattr(probe, "is_right", lambda *_: False)
    with pytest.raises(UnusableHost, match="was not tested"):
        CachedBatchGenerator(generator, cache)


@pytest.mark.parametrize("command", ["demo"])
def test_commands_refuse_an_untested_version_in_one_line(command: str) -> None:
    script = f"""
        import sys, mlx_lm
        mlx_lm.__version__ = "0.33.1"
        from omlx_cache_daemon.cli import main
        sys.exit(main([{command!r}]))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"omlx-cache: omlx-cache {command} is tested with mlx-lm >=0.31.3,<0.33, and mlx-lm 0.33.1 "
        "is installed: pip install 'mlx-lm>=0.31.3,<0.33'\n"
    )


def test_chunked_windows_are_left_alone_where_their_contents_depend_on_their_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert is_old() is BEFORE_0_32
    monkeypatch.setattr(mlx_lm, "__version__", "0.31.3")
    with pytest.raises(UnsupportedCache, match=r"ChunkedKVCache of mlx-lm before 0\.32"):
        ChunkedKVCacheAdapter().group(ChunkedKVCache(32))
    monkeypatch.setattr(mlx_lm, "__version__", "0.32.0")
    assert ChunkedKVCacheAdapter().group(ChunkedKVCache(32)).kind == "window"


@pytest.mark.parametrize("version", ["", "0.31.3"])
def test_another_packages_chunked_windows_do_not_ask_for_mlx_lms_version(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlx_lm_versions, "installed", lambda: version)
    other = SimpleNamespace(chunk_size=32)
    assert ChunkedKVCacheAdapter().group(other).kind == "window"


def test_where_there_is_no_mlx_lm_it_is_not_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_lm_versions, "installed", lambda: "")
    assert not is_old()


def _filled(cache: KVCache) -> KVCache:
    ones = mx.ones((1, 1, 5, 8), mx.bfloat16)
    cache.update_and_fetch(ones, ones)
    return cache


@pytest.mark.parametrize("make", [KVCache, lambda: RotatingKVCache(64)])
def test_a_row_without_tokens_leaves_the_type_of_its_batch(make: type[KVCache]) -> None:
    (full,), (empty,) = batchable([_filled(make())]), batchable([make()])
    batch = full.merge([full])
    batch.extend(empty.merge([empty]))
    assert (batch.keys.dtype, batch.values.dtype) == (mx.bfloat16, mx.bfloat16)
    assert batch.extract(0).keys.shape[2] == 5
    assert isinstance(batch.extract(0), type(make()).__mro__[0])


def test_states_without_tokens_know_the_lengths_that_are_announced() -> None:
    (listed,) = batchable([CacheList(ArraysCache(2), KVCache())])
    batch = listed.merge([listed, listed])
    batch.prepare(lengths=[3, 1], right_padding=[0, 2])
    assert batch.caches[0].make_mask(3).tolist() == [[True, True, True], [True, False, False]]
    assert isinstance(batch.caches[1], BatchKVCache)
