"""A budget smaller than a page or a sequence says so: once for a model, and in each result."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import KVCache

from kit import zoo
from kit.drive import random_tokens, request, settings
from kit.examples import some
from kit.filling import fill
from kit.storage import files_in, set_budget
from omlx_cache import BlockStore, CacheSettings, PrefixCache, reasons
from omlx_cache.commit.committer import CommitResult
from omlx_cache.settings import DiskSpace
from omlx_cache.settings.machine import probe
from omlx_cache.settings.sizes import parse_size
from omlx_cache_storage.cold.small_files import Budget

TOKENS = 320


def _run(
    directory: Path, lengths: Sequence[int] = (TOKENS,), family: str = "llama", **fields: Any
) -> list[CommitResult]:
    """Serve prompts of these lengths with one model; return what their commits said."""
    model = zoo.build(family)
    results = []
    with BlockStore(settings(directory, **{"commit_wait_seconds": 0.1, **fields})) as store:
        cache = PrefixCache(model, store, model_id="tiny-llama")
        for number, length in enumerate(lengths):
            results.append(request(model, cache, random_tokens(length, number), new=0).result)
    return results


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.levelno == logging.WARNING]


def test_a_memory_smaller_than_a_page_keeps_nothing_and_says_which_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (result,) = _run(tmp_path, hot_bytes="16KiB", queue_bytes="16KiB", block_size=256)
    assert result.pages == 0
    assert result.skipped[reasons.NO_ROOM] > 0
    assert [text.partition(" (")[0] for text in _said(caplog)] == ["hot_bytes"]
    assert "smaller than one page of tiny-llama" in _said(caplog)[0]
    assert "256 tokens" in _said(caplog)[0]


def test_a_queue_smaller_than_a_page_writes_one_after_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"hot_bytes": "1MiB", "queue_bytes": 0, "commit_wait_seconds": 30}
    (result,) = _run(tmp_path, **fields)
    assert result.skipped == {}
    assert len(files_in(tmp_path)) >= TOKENS // 32
    assert _said(caplog) == []


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_a_memory_of_a_few_pages_writes_all_of_a_sequence_by_default(
    pages: int, tmp_path: Path
) -> None:
    sizes = _run(tmp_path / "ample", hot_cache_only=True)
    page = sizes[0].nbytes // (TOKENS // 32)
    hot = pages * page + 100
    fields = {"hot_bytes": hot, "queue_bytes": "auto", "commit_wait_seconds": 30}
    with BlockStore(settings(tmp_path / "small", **fields)) as store:
        model = zoo.build("llama")
        cache = PrefixCache(model, store, model_id="tiny-llama")
        result = request(model, cache, random_tokens(TOKENS, 0), new=0).result
        assert store.flush(timeout=30)
        stats = store.stats()
        assert stats.cold.pages >= TOKENS // 32
        assert max(stats.hot.peak_bytes, stats.writer.peak_bytes) <= hot
    assert reasons.NO_ROOM not in result.skipped


@pytest.mark.parametrize("fields", [{"cold_bytes": 2**26}, {"cold_bytes": "auto"}])
def test_the_directorys_budget_counts_where_it_is_less_than_this_process_was_told(
    fields: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kv").mkdir(mode=0o700)
    set_budget(tmp_path / "kv", Budget(256 * 1024, "quota"))
    _run(tmp_path / "kv", (TOKENS, TOKENS), **fields)
    (text,) = [text for text in _said(caplog) if "holds about" in text]
    assert text.startswith("the directory's budget (256 KiB) holds about ")
    advice = re.search(r"; it needs (\S+): `omlx-cache doctor` says", text)
    assert advice, text
    set_budget(tmp_path / "kv", Budget(parse_size(advice[1]), "quota"))
    caplog.clear()
    result, _ = _run(tmp_path / "kv", (TOKENS, TOKENS), **{**fields, "commit_wait_seconds": 30})
    assert result.skipped == {}
    assert len(files_in(tmp_path / "kv")) >= TOKENS // 32
    assert not [text for text in _said(caplog) if "holds about" in text]


@pytest.mark.parametrize("family", some(["llama", "gemma3_text", "qwen3_next"], "gemma3_text"))
@pytest.mark.parametrize("memory_only", [False, True], ids=["cold_bytes", "hot_bytes"])
def test_the_size_that_is_named_holds_the_sequence(
    family: str, memory_only: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "hot_bytes" if memory_only else "cold_bytes"
    fields = {"hot_cache_only": memory_only, "family": family}
    small = (80 if memory_only else 192) * 1024
    _run(tmp_path / "small", (TOKENS,), **fields, **{name: small})
    (text,) = _said(caplog)
    advice = re.search(r"; it needs (?:hot_bytes=)?([^ :]+)", text)
    assert advice, text
    assert parse_size(advice[1]) < 10 * 2**20, "no more than is needed, about"
    caplog.clear()
    (result,) = _run(tmp_path / "named", (TOKENS,), **fields, **{name: advice[1]})
    assert _said(caplog) == []
    assert reasons.NO_ROOM not in result.skipped


def test_a_model_that_is_loaded_again_is_not_complained_of_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BlockStore(settings(tmp_path, cold_bytes=256 * 1024, commit_wait_seconds=0.1)) as store:
        for number in range(2):
            model = zoo.build("llama")
            cache = PrefixCache(model, store, model_id="tiny-llama")
            request(model, cache, random_tokens(TOKENS, number), new=0)
    assert len(_said(caplog)) == 1


def test_a_store_that_can_keep_nothing_says_so_when_it_opens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BlockStore(settings(tmp_path, cold_bytes=0)):
        pass
    assert _said(caplog) == [
        "cold_bytes (0 B) has no room for a file: nothing will be kept on disk"
    ]


def test_a_directory_that_cannot_be_used_is_named_and_no_budget_is_advised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    machine = replace(probe(), disk=lambda path: DiskSpace(0, 0))
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        caplog.clear()
        with BlockStore(CacheSettings(machine=machine, cold_dir=directory)) as store:
            model = zoo.build("llama")
            request(model, PrefixCache(model, store), random_tokens(TOKENS, 1), new=0)
        assert "cold_bytes" not in caplog.text
        assert f"no cold tier: {directory}: " in caplog.text


def test_a_prompt_of_whole_blocks_has_no_page_stored_twice_when_the_disk_is_full(
    tmp_path: Path,
) -> None:
    fields = {"hot_bytes": 0, "cold_bytes": "2MiB", "queue_bytes": "256KiB", "block_size": 16}
    with BlockStore(settings(tmp_path, commit_wait_seconds=30, **fields)) as store:
        cache = PrefixCache(zoo.build("llama"), store, make_cache=lambda: [KVCache()])
        with cache.session(random_tokens(512, 1)) as session:
            fill(session.prompt_cache, 1024)
            session.extend(random_tokens(512, 2))
            assert session.commit().pages == 1024 // 16
