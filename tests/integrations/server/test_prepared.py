"""What is done once for each model is done before the server says that it listens."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.tinylm import Server, make_model, serve_ours
from kit.wire import completion, exchange

TOLD = "the cache looks at the model"

_SOURCE = f'''
"""qwen3; says when the cache looks at a model for the first time, and fails to where it is told."""

import os
import sys

from mlx_lm.models.qwen3 import Model, ModelArgs

from omlx_cache.integrations.mlx_lm import prompt_cache

look = prompt_cache.caches_of


def told(source, store):
    sys.stderr.write("{TOLD}\\n")
    sys.stderr.flush()
    if os.environ.get("LOOKS") == "fail":
        os.environ["LOOKS"] = "work"
        raise RuntimeError("not now")
    return look(source, store)


prompt_cache.caches_of = told
'''


def telling_model(directory: Path) -> Path:
    make_model(directory, "qwen3")
    config = directory / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_file": "telling.py"}))
    (directory / "telling.py").write_text(_SOURCE)
    return directory


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server of such a model, which does not outlive its test."""
    model = telling_model(tmp_path / "model")
    started: list[Server] = []

    def one(**variables: str) -> Server:
        arguments = ("--model", str(model), "--trust-remote-code")
        started.append(serve_ours(tmp_path / "home", *arguments, **variables))
        return started[-1]

    yield one
    for server in started:
        assert server.stop() == 0, server.text()


def test_no_request_waits_for_what_is_done_once_for_a_model(start: Callable[..., Server]) -> None:
    assert TOLD in start().text()


@pytest.mark.nightly
def test_a_server_that_cannot_prepare_serves_all_the_same(start: Callable[..., Server]) -> None:
    server = start(LOOKS="fail")
    assert "not now" in server.text()
    assert exchange(server.url, completion(prompt="Hello", max_tokens=1)).status == 200
