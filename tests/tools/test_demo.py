"""`omlx-cache demo`: it passes when restores are right, and only then."""

import json
import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.output import check_output
from kit.tinylm import make_model
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache.tools import demo as course
from omlx_cache.tools.demo import make_prompts
from omlx_cache.tools.demo_runs import DemoError
from omlx_cache_daemon.cli import main
from omlx_cache_storage.hot import HotTier

TOKENS = 120
SHARED = 48
SMALL = ["demo", "--tokens", str(TOKENS), "--new-tokens", "12"]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 tokens, in the demo's second process too, keep the prompts short."""
    monkeypatch.setenv("OMLX_CACHE_BLOCK_SIZE", "16")


def _json(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> tuple[int, Any]:
    code = main([*arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_every_kind_of_restore_gives_the_tokens_of_a_run_without_the_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cold = tmp_path / "cold"
    code, told = _json(capsys, [*SMALL, "--cold-dir", str(cold)])
    assert code == 0
    check_output("demo", told)
    assert told["passed"]
    restored = [row["restored_tokens"] for row in told["rows"]]
    assert restored == [0, TOKENS - 1, TOKENS - 1, TOKENS - 1, 0, SHARED]
    assert all(row["same_tokens"] and len(row["new_tokens"]) == 12 for row in told["rows"])
    assert all(row["peak_bytes"] > 0 and row["first_token_seconds"] > 0 for row in told["rows"])
    prompts = {tuple(row["new_tokens"]) for row in told["rows"]}
    assert len(prompts) == 2, "the second prompt must not be answered like the first"
    assert list(cold.rglob("*.safetensors")), "a directory of the user's own is kept"


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
    assert [row["same_tokens"] for row in told["rows"]] == [True, False, True, False, True, False]


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
    long = told["rows"].pop(3)
    restored = [row["restored_tokens"] for row in told["rows"]]
    assert restored == [0, TOKENS - 1, TOKENS - 1, 0, SHARED]
    assert long["restored_tokens"] < TOKENS / 2
    assert long["same_tokens"]


@pytest.mark.nightly
def test_a_model_and_a_text_of_the_users_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = make_model(tmp_path / "model", "qwen3")
    text = tmp_path / "prompt.txt"
    text.write_text("abcdefghijkl" * 10)
    arguments = ["demo", "--model", str(model), "--prompt-file", str(text), "--new-tokens", "8"]
    code, told = _json(capsys, arguments)
    assert code == 0
    assert told["model"] == str(model)
    assert [row["restored_tokens"] for row in told["rows"]] == [0, 119, 119, 119, 0, SHARED]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (None, (), "no such file"),
        (b" \n\t\n", (), "is empty"),
        (b"\xff\xfe\x00", (), "is not UTF-8 text"),
        (b"hello", (), "has 5 tokens; the demo needs 32"),
        (b"hello", ("--tokens", "5000"), "--tokens asks for 5000"),
        (b"w" * 120, ("--model", "{place}"), "mlx-lm cannot load '{place}'"),
        (b"w" * 120, ("--cold-dir", "{prompt}/cold"), "the cold tier"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: bytes | None,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    prompt = tmp_path / "prompt.txt"
    if content is not None:
        prompt.write_bytes(content)
    names = {"place": tmp_path, "prompt": prompt}
    more = [argument.format(**names) for argument in arguments]
    assert main(["demo", "--prompt-file", str(prompt), *more]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert said.format(**names) in told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize("length", [1, 31, 32, 33, 700, 1500])
@pytest.mark.parametrize("block_size", [16, 256])
def test_the_prompts_share_whole_blocks_of_the_first_half_and_no_token_more(
    length: int, block_size: int
) -> None:
    draw = random.Random(length)
    tokens = [draw.randrange(3) for _ in range(length)]
    if length < 2 * block_size:
        with pytest.raises(DemoError, match=str(2 * block_size)):
            make_prompts(tokens, block_size, 1)
        return
    first, second = make_prompts(tokens, block_size, 1)
    shared = first.shared
    assert (first.tokens, len(second.tokens), shared % block_size) == (tokens, length, 0)
    assert 0 < shared <= length // 2
    assert first.tokens[:shared] == second.tokens[:shared]
    assert first.tokens[shared] != second.tokens[shared]
    assert first.ends == second.ends == sorted(set(first.ends))
    assert {shared, length - 1, length} <= set(first.ends)


def test_the_table_has_the_time_that_each_row_is_compared_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "WIDTH", 80)
    assert main(SMALL) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    speeds = [row[-4] for row in rows if row[-1:] == ["yes"]]
    assert len(speeds) == 6, "a row that breaks is none"
    # Others may be as slow on a busy machine.
    assert (speeds[0], speeds[4]) == ("1.0x", "1.0x")
