"""What is done once for each model is done before the server says that it listens."""

import json
from pathlib import Path

from kit.tinylm import make_model, serve_ours
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


def test_no_request_waits_for_what_is_done_once_for_a_model(tmp_path: Path) -> None:
    model = telling_model(tmp_path / "model")
    server = serve_ours(tmp_path / "home", "--model", str(model), "--trust-remote-code")
    assert TOLD in server.text()
    assert server.stop() == 0, server.text()


def test_a_server_that_cannot_prepare_serves_all_the_same(tmp_path: Path) -> None:
    model = telling_model(tmp_path / "model")
    server = serve_ours(
        tmp_path / "home", "--model", str(model), "--trust-remote-code", LOOKS="fail"
    )
    assert "not now" in server.text()
    assert exchange(server.url, completion(prompt="Hello", max_tokens=1)).status == 200
    assert server.stop() == 0, server.text()
