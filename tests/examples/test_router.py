"""The reference router before two servers: a conversation stays where its prefix is."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.forks import CAN_FORK, parent
from kit.remote.processes import NotYet, eventually
from kit.tinylm import LmServer, free_port, make_model, serve_ours

ROUTER = Path(__file__).parents[2] / "examples" / "router.py"
STORY = "The dragon of the northern hills was old and kept a library of maps. " * 12
OTHER = "A train leaves the station at noon and arrives before the rain begins. " * 12
Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CAN_FORK:
        parent()
    return make_model(tmp_path_factory.mktemp("m") / "dense", "qwen3")


@pytest.fixture
def machines(tmp_path: Path, model: Path) -> Iterator[list[LmServer]]:
    flags = ("--model", str(model), "--status")
    running = [serve_ours(tmp_path / name, *flags, forked=True) for name in ("one", "two")]
    yield running
    for server in running:
        server.kill()


class Router:
    """The example, in a process of its own, that waits for as long as a loaded machine takes."""

    def __init__(self, directory: Path, *urls: str) -> None:
        text = ROUTER.read_text()
        patient = directory / "router.py"
        patient.write_text(text.replace("\nDEADLINE = 0.3 ", "\nDEADLINE = 60.0 "))
        assert patient.read_text() != text
        self.process = subprocess.Popen(
            [sys.executable, str(patient), "--port", "0", *urls],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def chat(self, messages: Messages, **options: Any) -> tuple[str, str, int]:
        """Return who answered, what, and how many tokens of the prompt were in its cache."""
        body = {"messages": messages, "max_tokens": 8, "temperature": 0, **options}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            served, text = answer.headers["X-Served-By"], answer.read().decode()
        if options.get("stream"):
            return served, text, 0
        told = json.loads(text)
        cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
        return served, told["choices"][0]["message"]["content"] or "", cached

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def routed(tmp_path: Path, machines: list[LmServer]) -> Iterator[Router]:
    router = Router(
        tmp_path, f"http://127.0.0.1:{free_port()}", *(server.url for server in machines)
    )
    yield router
    router.close()


def _directly(server: LmServer, messages: Messages) -> None:
    """Ask a machine, and wait until it knows what it computed: it stores behind its answer."""
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    _post(server, "/v1/chat/completions", body)

    def known() -> None:
        told = json.loads(_post(server, "/lookup", body))
        if told["cached_tokens"] <= 64:
            raise NotYet(str(told))

    eventually(known, "storing what was computed", 60)


def _post(server: LmServer, path: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(
        f"{server.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def test_a_second_turn_goes_to_the_machine_that_has_the_first(
    machines: list[LmServer], routed: Router
) -> None:
    # The first machine of the list is one that nobody listens at.
    for server, text in zip(machines, (OTHER, STORY), strict=True):
        first = [{"role": "user", "content": text}]
        _directly(server, first)
        more = [*first, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "?"}]
        served, _, cached = routed.chat(more)
        assert served == server.url
        assert cached > 64
        # Again, and as a stream.
        served, text, _ = routed.chat(more, stream=True)
        assert served == server.url
        assert text.rstrip().endswith("data: [DONE]")


@pytest.mark.nightly
def test_a_machine_that_died_is_left_out(machines: list[LmServer], routed: Router) -> None:
    first = [{"role": "user", "content": STORY}]
    _directly(machines[0], first)
    assert routed.chat(first)[0] == machines[0].url
    machines[0].kill()
    assert routed.chat(first)[0] == machines[1].url
    assert routed.chat(first)[0] == machines[1].url


def test_machines_without_a_status_port_are_served_all_the_same(
    tmp_path: Path, model: Path
) -> None:
    server = serve_ours(tmp_path / "plain", "--model", str(model), forked=True)
    router = Router(tmp_path, server.url)
    try:
        assert router.chat([{"role": "user", "content": "hello"}])[0] == server.url
        with urllib.request.urlopen(f"{router.url}/v1/models", timeout=30) as answer:
            assert json.loads(answer.read())["object"] == "list"
    finally:
        router.close()
        server.kill()
