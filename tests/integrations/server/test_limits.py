"""What a request may take: beyond it there is an answer that names the limit and its flag."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.examples import some
from kit.tinylm import LmServer, serve_ours
from kit.units import MIB
from kit.wire import completion, exchange, request
from omlx_cache.integrations.mlx_lm.serving import CONTEXT_TOKENS, context_of


@pytest.fixture(scope="module")
def small(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, forks: None
) -> Iterator[LmServer]:
    flags = ["--max-body-bytes", "96MiB", "--max-prompt-tokens", "500"]
    flags += ["--model", str(models["dense"])]
    server = serve_ours(tmp_path_factory.mktemp("small"), *flags, forked=True)
    yield server
    assert server.stop() == 0, server.text()


def peak(server: LmServer) -> int:
    """The most memory that the server's process has ever held, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def reset_peak(server: LmServer) -> None:
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc"
)


@needs_proc
def test_a_body_over_the_limit_takes_no_memory(ours: LmServer) -> None:
    """64 MiB sent to a server whose limit is 32."""
    assert exchange(ours.url, completion(prompt="warm up")).status == 200
    reset_peak(ours)
    before = peak(ours)
    answer = exchange(ours.url, completion(prompt="x" * (64 * MIB)))
    assert answer.status == 413
    assert "at most 33554432 bytes (serve --max-body-bytes)" in answer.error
    assert peak(ours) - before < 4 * MIB


def test_messages_that_are_no_list_of_objects_are_refused(small: LmServer) -> None:
    for messages in ("nonsense", ["nonsense"], None):
        answer = exchange(
            small.url, request(json.dumps({"messages": messages}).encode(), "/v1/chat/completions")
        )
        said = 'messages must be a list of objects with "role" and "content"'
        assert (answer.status, answer.error) == (400, said)


def test_a_model_that_is_not_there_is_named_with_the_one_that_is(small: LmServer) -> None:
    answer = exchange(small.url, completion(prompt="hello", model="gpt-4"))
    said = "the model 'gpt-4' cannot be loaded; this server has dense"
    assert (answer.status, answer.error) == (404, said)
    assert f"a request failed: {said} (" in small.text()
    assert exchange(small.url, completion(prompt="hello", model="dense")).status == 200


@needs_proc
@pytest.mark.parametrize("chat", some([False, True], True), ids=["text", "chat"])
def test_a_prompt_over_the_limit_takes_its_own_size_and_a_constant(
    chat: bool, small: LmServer
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


def test_a_prompt_of_just_the_limit_is_computed(small: LmServer) -> None:
    assert exchange(small.url, completion(prompt="a" * 500)).status == 200
    answer = exchange(small.url, completion(prompt="a" * 501))
    assert (answer.status, "has 501 tokens" in answer.error) == (400, True)
    answer = exchange(small.url, completion(prompt=[5] * 501))
    assert (answer.status, "has 501 tokens" in answer.error) == (400, True)


def test_a_server_without_a_model_asks_for_one(tmp_path: Path, forks: None) -> None:
    server = serve_ours(tmp_path, forked=True)
    answer = exchange(server.url, completion(prompt="a"))
    assert (answer.status, "serve with --model" in answer.error) == (400, True)
    assert server.stop() == 0, server.text()


def test_the_default_is_the_context_that_the_model_names(ours: LmServer) -> None:
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
