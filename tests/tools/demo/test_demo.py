import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.output import check_output
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache_daemon.cli import main
from omlx_cache_storage.hot import HotTier

TOKENS = 120
SHARED = 48
SMALL = ["demo", "--tokens", str(TOKENS), "--new-tokens", "12"]


def _json(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> tuple[int, Any]:
    code = main([*arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_every_kind_of_restore_gives_the_tokens_of_a_run_without_the_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, told = _json(capsys, SMALL)
    assert code == 0
    check_output("demo", told)
    assert told["passed"]
    restored = [row["restored_tokens"] for row in told["rows"]]
    assert restored == [0, TOKENS - 1, TOKENS - 1, SHARED, TOKENS - 1]
    assert all(row["same_tokens"] and len(row["new_tokens"]) == 12 for row in told["rows"])
    assert all(row["peak_bytes"] > 0 and row["first_token_seconds"] > 0 for row in told["rows"])
    prompts = {tuple(row["new_tokens"]) for row in told["rows"]}
    assert len(prompts) == 2, "the second prompt must not be answered like the first"


@pytest.mark.nightly
def test_the_table_has_a_row_for_each_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    told = capsys.readouterr()
    for title in (
        "prefill without the cache",
        "same prompt, hot tier",
        "new process, from SSD",
        "half shared, hot tier",
        "x the memory, from SSD",
    ):
        (line,) = (line for line in told.out.splitlines() if title in line)
        assert line.split()[-1] == "yes"
    assert "tokens" in told.err


def test_a_wrong_restore_is_a_no_and_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controls of the demo itself: blocks served at another position, as a peer does."""
    right = KVCacheAdapter.rebuild

    def swapped(self: Any, cache: Any, arrays: Any, position: int, phase: Any) -> None:
        keys = arrays["keys"]
        moved = {**arrays, "keys": keys[:, :, [*range(16, 32), *range(16), *range(32, position)]]}
        right(self, cache, moved, position, phase)

    monkeypatch.setattr(KVCacheAdapter, "rebuild", swapped)
    code, told = _json(capsys, SMALL)
    assert code == 1
    assert [row["same_tokens"] for row in told["rows"]] == [True, False, True, False, False]


@pytest.mark.nightly
def test_a_restore_of_less_than_there_is_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("this adapter is broken")

    monkeypatch.setattr(KVCacheAdapter, "rebuild", refuse)
    assert main(SMALL) == 1
    assert "0 tokens restored instead of 119 (error:ValueError)" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_long_conversation_that_does_not_come_back_whole_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a sequence could not push out pages of its own: only what memory holds is stored."""
    right = HotTier.reserve

    def keep_own(
        self: Any, nbytes: int, own: Collection[Any] = (), *, evict: bool = True, **options: Any
    ) -> Any:
        return right(self, nbytes, own, evict=evict and not own, **options)

    monkeypatch.setattr(HotTier, "reserve", keep_own)
    code, told = _json(capsys, SMALL)
    assert code == 1
    *others, long = told["rows"]
    assert [row["restored_tokens"] for row in others] == [0, TOKENS - 1, TOKENS - 1, SHARED]
    assert long["restored_tokens"] < TOKENS / 2
    assert long["same_tokens"]


@pytest.mark.nightly
def test_a_model_and_a_text_of_the_users_own(
    capsys: pytest.CaptureFixture[str], model_dir: Path, text_file: Path
) -> None:
    arguments = ["demo", "--model", str(model_dir), "--prompt-file", str(text_file)]
    code, told = _json(capsys, [*arguments, "--new-tokens", "8"])
    assert code == 0
    assert told["model"] == str(model_dir)
    assert [row["restored_tokens"] for row in told["rows"]] == [0, 119, 119, SHARED, 119]


@pytest.mark.nightly
def test_a_cold_directory_of_the_users_own_is_kept_and_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [*SMALL, "--cold-dir", str(tmp_path / "cold")]
    assert _json(capsys, arguments)[0] == 0
    files = sorted((tmp_path / "cold").rglob("*.safetensors"))
    assert files
    assert _json(capsys, arguments)[0] == 0
    assert sorted((tmp_path / "cold").rglob("*.safetensors")) == files
