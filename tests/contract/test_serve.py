"""`omlx-cache serve` over HTTP: the answers of mlx-lm's own server, with what is cached restored,
after a restart and a kill -9 too; a bad request is refused, and SIGTERM ends it with all written.

One server of mlx-lm's and one of ours serve most tests.
"""

import json
import os
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.driving import SLACK, Child, environment, pages
from kit.tinylm.process import free_port
from kit.tinylm.saved import make_model

SYSTEM = "You are a helpful assistant who answers briefly and to the point. " * 4


@dataclass
class Server:
    child: Child
    url: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as reply:
            return json.loads(reply.read())

    def post(self, path: str, document: object, *, raw: bytes | None = None) -> bytes:
        body = json.dumps(document).encode() if raw is None else raw
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.url}{path}", body, headers)
        with urllib.request.urlopen(asked, timeout=60) as reply:
            answer: bytes = reply.read()
            return answer

    def chat(self, *said: str, **options: Any) -> tuple[str, int]:
        """The answer to a conversation, and how many tokens of the prompt were restored."""
        roles = ["system", *["user", "assistant"] * len(said)]
        messages = [
            {"role": role, "content": text}
            for role, text in zip(roles, (SYSTEM, *said), strict=False)
        ]
        asked = {"messages": messages, "max_tokens": 12, "temperature": 0, **options}
        told = json.loads(self.post("/v1/chat/completions", asked))
        details = told["usage"].get("prompt_tokens_details") or {}
        return told["choices"][0]["message"]["content"] or "", details.get("cached_tokens", 0)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.child.send(number)
        return self.child.end(60)


@contextmanager
def ours(home: Path, model: Path) -> Iterator[Server]:
    runtime = tempfile.mkdtemp(prefix=f"oc-{os.getpid()}-", dir="/tmp")
    env = environment(
        OMLX_CACHE_COLD_DIR=str(home / "cold"),
        OMLX_CACHE_RUNTIME_DIR=runtime,
        OMLX_CACHE_HOT_BYTES="64MiB",
        OMLX_CACHE_COLD_BYTES="256MiB",
        OMLX_CACHE_MIN_FREE_BYTES="0",
        OMLX_CACHE_BLOCK_SIZE="64",
    )
    command = ["-m", "omlx_cache", "serve", "--port", "0", "--model", str(model)]
    child = Child(command, env=env, log=home / "serve.log", forked=True)
    try:
        assert child.process.stdout is not None
        line = child.process.stdout.readline()
        assert line.startswith("Listening on http://"), child.text()
        yield Server(child, line.split()[-1])
    finally:
        child.kill()
        shutil.rmtree(runtime)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "dense", "qwen3")


@pytest.fixture(scope="module")
def server(
    _forking: None, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with ours(tmp_path_factory.mktemp("ours"), model) as running:
        yield running


@pytest.fixture(scope="module")
def plain(
    _forking: None, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """mlx-lm's own server."""
    home, port = tmp_path_factory.mktemp("plain"), free_port()
    command = ["-m", "mlx_lm", "server", "--port", str(port), "--model", str(model)]
    child = Child(command, env=environment(), log=home / "log", forked=True)
    running = Server(child, f"http://127.0.0.1:{port}")
    deadline = time.monotonic() + 90
    while True:
        try:
            running.get("/health")
            break
        except (urllib.error.URLError, OSError):
            assert child.process.poll() is None, child.text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    yield running
    child.kill()


def test_a_conversation_gets_the_answers_of_mlx_lms_server(server: Server, plain: Server) -> None:
    said: list[str] = []
    restored = []
    for number in range(3):
        said.append(f"Question {number}, please?")
        answer, cached = server.chat(*said)
        assert answer == plain.chat(*said)[0]
        restored.append(cached)
        said.append(answer)
    assert restored[0] == 0
    assert 200 < restored[1] < restored[2]


def test_the_same_request_gets_the_same_answer_from_the_cache(server: Server) -> None:
    answers = [server.chat("Say it again") for _ in range(3)]
    assert len({text for text, _ in answers}) == 1
    assert answers[1][1] == answers[2][1] > answers[0][1]


def test_a_stream_says_what_the_whole_answer_says(server: Server) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Stream it"}]
    asked = {"messages": messages, "max_tokens": 12, "temperature": 0, "stream": True}
    text = ""
    for line in server.post("/v1/chat/completions", asked).decode().splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            for choice in json.loads(line[6:])["choices"]:
                text += (choice.get("delta") or {}).get("content") or ""
    assert text == server.chat("Stream it")[0]


def test_requests_at_once_get_the_answers_that_they_get_alone(server: Server) -> None:
    asked = [f"Number {number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda text: server.chat(text)[0], asked * 2))
    assert together == [server.chat(text)[0] for text in asked] * 2


def test_completions_and_models_are_answered(server: Server, plain: Server, model: Path) -> None:
    asked = {"prompt": SYSTEM, "max_tokens": 8, "temperature": 0}
    texts = [
        json.loads(one.post("/v1/completions", asked))["choices"][0]["text"]
        for one in (server, server, plain)
    ]
    assert len(set(texts)) == 1
    assert str(model) in {one["id"] for one in server.get("/v1/models")["data"]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"messages": []}',
        b'{"messages": "no"}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    ],
)
def test_a_bad_request_is_refused_and_the_next_one_served(server: Server, body: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post("/v1/chat/completions", None, raw=body)
    with refused.value:
        assert 400 <= refused.value.code < 500
    assert server.chat("Still there?")[0] == server.chat("Still there?")[0]


@pytest.mark.usefixtures("_forking")
def test_a_restart_and_a_kill_lose_nothing_that_was_written(tmp_path: Path, model: Path) -> None:
    with ours(tmp_path, model) as server:
        first, cached = server.chat("Before the restart")
        assert cached == 0
        assert server.stop() == 0
    assert pages(tmp_path / "cold")
    assert not list(tmp_path.rglob(".tmp-*"))
    with ours(tmp_path, model) as server:
        again, cached = server.chat("Before the restart")
        assert again == first
        assert cached > 200
        server.child.kill()
    with ours(tmp_path, model) as server:
        assert server.chat("Before the restart") == (first, cached)
        began = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            # In the middle of an answer.
            late = pool.submit(server.chat, "A long one", max_tokens=4000)
            assert not late.done()
            assert server.stop() == 0
            assert late.exception(SLACK) is None or isinstance(
                late.exception(), OSError | ValueError
            )
        assert time.monotonic() - began < 60 + SLACK
