"""What a request may take: beyond it there is an answer that names the limit and its flag."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.examples import some
from kit.tinylm import Server, serve_ours
from kit.wire import completion, exchange, filled, read_answer, request
from omlx_cache.integrations.mlx_lm.server.limits import CONTEXT_TOKENS, Limits, context_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def small(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, forks: None
) -> Iterator[Server]:
    flags = ["--max-body-bytes", "96MiB", "--max-prompt-tokens", "500", "--max-requests", "2"]
    flags += ["--model", str(models["dense"])]
    server = serve_ours(tmp_path_factory.mktemp("small"), *flags, forked=True)
    yield server
    assert server.stop() == 0, server.text()


def peak(server: Server) -> int:
    """The most memory that the server's process has ever held, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def reset_peak(server: Server) -> None:
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc"
)


@needs_proc
def test_a_body_over_the_limit_takes_no_memory(ours: Server) -> None:
    """64 MiB sent to a server whose limit is 32."""
    assert exchange(ours.url, completion(prompt="warm up")).status == 200
    reset_peak(ours)
    before = peak(ours)
    answer = exchange(ours.url, completion(prompt="x" * (64 * MIB)))
    assert answer.status == 413
    assert "at most 33554432 bytes (serve --max-body-bytes)" in answer.error
    assert peak(ours) - before < 4 * MIB


@needs_proc
@pytest.mark.parametrize("chat", some([False, True], True), ids=["text", "chat"])
def test_a_prompt_over_the_limit_takes_its_own_size_and_a_constant(
    chat: bool, small: Server
) -> None:
    """64 MiB of text within the body's limit, which would be 24 GB of tokens: bytes, their text
    and the string in it, and for a chat the prompt that its template makes."""
    text = "word " * (64 * MIB // 5)
    assert exchange(small.url, completion(prompt="warm up")).status == 200
    body = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    sent = request(json.dumps(body).encode(), path)
    reset_peak(small)
    before = peak(small)
    answer = exchange(small.url, sent, 120)
    assert answer.status == 400
    assert "more than 500 tokens, and 500 is the most" in answer.error
    assert "serve --max-prompt-tokens" in answer.error
    assert peak(small) - before < 4.2 * 64 * MIB


def test_a_prompt_of_just_the_limit_is_computed(small: Server) -> None:
    assert exchange(small.url, completion(prompt="a" * 500)).status == 200
    answer = exchange(small.url, completion(prompt="a" * 501))
    assert (answer.status, "has 501 tokens" in answer.error) == (400, True)
    answer = exchange(small.url, completion(prompt=[5] * 501))
    assert (answer.status, "has 501 tokens" in answer.error) == (400, True)


def test_more_requests_than_may_be_held_are_told_to_come_again(small: Server) -> None:
    """Two clients that have sent half a body each hold the two places there are."""
    half = request(b'{"prompt": "a", ', "/v1/completions", "Content-Length: 32")
    with filled(small.url, half, 2) as (holders, answer):
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "--max-requests" in answer.error
        for holder in holders:
            holder.sendall(b'"max_tokens": 1}')
            assert read_answer(holder).status == 200
    assert exchange(small.url, completion(prompt="b")).status == 200


def test_the_default_is_the_context_that_the_model_names(ours: Server) -> None:
    answer = exchange(ours.url, completion(prompt=[5] * 32_769), 120)
    assert answer.status == 400
    assert "has 32769 tokens, and 32768 is the most" in answer.error


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 40_960}, 40_960),
        ({"text_config": {"max_position_embeddings": 131_072}}, 131_072),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 131_072, "rope_scaling": {"rope_type": "llama3",
          "factor": 8.0, "original_max_position_embeddings": 8192}}, 131_072),
        ({"max_position_embeddings": 40_960, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 32_768}}, 131_072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4}},
         16_384),
        ({"max_position_embeddings": "many"}, CONTEXT_TOKENS),
        ({}, CONTEXT_TOKENS),
    ],
)  # fmt: skip
def test_scaled_positions_count(config: dict[str, object], tokens: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", **config}))
    assert context_of(str(tmp_path)) == tokens
    assert Limits().tokens_of(str(tmp_path)) == tokens
    assert Limits(prompt_tokens=7).tokens_of(str(tmp_path)) == 7


def test_the_bytes_of_all_bodies_together_are_limited(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, forks: None
) -> None:
    flags = ["--max-body-bytes", "1000", "--model", str(models["dense"])]
    server = serve_ours(tmp_path_factory.mktemp("held"), *flags, forked=True)
    half = request(b"{", "/v1/completions", "Content-Length: 1000")
    try:
        with filled(server.url, half, 8) as (_, answer):
            assert answer.status == 503
            assert "8000 is the most" in answer.error
    finally:
        server.kill()
