"""A server whose disk has room for less than one conversation tells so, in words and by request."""

from pathlib import Path

import pytest

from kit.tinylm import serve_ours

from .conftest import SYSTEM, ask


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
