"""A server whose disk has room for less than one conversation tells so, in words and by request."""

from pathlib import Path

import pytest

from kit.tinylm import serve_ours

from .conftest import SYSTEM, ask, converse


@pytest.mark.nightly
def test_the_request_s_line_names_the_setting_that_is_too_small(
    models: dict[str, Path], tmp_path: Path, forks: None
) -> None:
    model = models["dense"]
    arguments = ["--model", str(model), "--block-size", "16", "--cold-bytes", "160KiB"]
    server = serve_ours(tmp_path, *arguments, forked=True)
    try:
        messages = [{"role": "user", "content": SYSTEM * 3}]
        turns = [ask(server, model, messages, max_tokens=4) for _ in range(2)]
    finally:
        assert server.stop() == 0, server.text()
    assert min(turn.prompt_tokens for turn in turns) > 100
    text = server.text()
    assert text.count("cold_bytes (160 KiB) holds about ") == 1, "once for the model"
    requests = [line for line in text.splitlines() if " tokens in, " in line]
    assert "not on the disk (no_room: cold_bytes)" in requests[-1], "memory has all of it"
    assert "not kept" not in text.partition("cold_bytes (160 KiB)")[0]


def test_a_memory_of_a_page_lets_a_conversation_of_ten_times_that_reach_the_disk(
    models: dict[str, Path], tmp_path: Path, forks: None
) -> None:
    model = models["wide"]
    arguments = ["--model", str(model), "--block-size", "64", "--min-free-bytes", "0"]
    arguments += ["--hot-bytes", "40KiB", "--cold-bytes", "8MiB"]
    answers = []
    for _ in range(2):
        server = serve_ours(tmp_path, *arguments, forked=True)
        try:
            answers.append(converse(server, model, "small budgets", turns=7, max_tokens=4))
        finally:
            assert server.stop() == 0, server.text()
    first, again = answers
    assert [turn.text for turn in first] == [turn.text for turn in again]
    # The second server has nothing in memory: all but the last words come from the disk.
    for turn in again:
        assert turn.cached_tokens >= turn.prompt_tokens - 64, again
    assert first[-1].cached_tokens >= first[-2].prompt_tokens // 64 * 64
    assert "not kept" not in server.text(), server.text()
