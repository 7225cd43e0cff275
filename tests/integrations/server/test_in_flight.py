"""Requests with one prefix at the same time: one computes it, the others restore it."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.tinylm import LmServer, serve_ours
from kit.tinylm.saved import BAD, ODD, Gate, make_failing_model
from kit.wire import completion, connected, read_answer

from .conftest import SYSTEM, ask, stats, wait_until_durable
from .in_flight import (
    BLOCK,
    QUIET,
    STEP,
    WAITS,
    Asking,
    Said,
    as_text,
    asking,
    stream_begun,
    tokens,
)
from .test_lifetime import why_of

Start = Callable[..., LmServer]

PREFIX = tokens(640, 1)
"""It is computed for 16 seconds while the gate is closed: until the test has seen what it needs."""
SUFFIX = 40
FAMILIES = {"dense": "qwen3", "windowed": "gemma3_text", "hybrid": "qwen3_next"}
KINDS = [*FAMILIES]
FINE = {"logit_bias": {str(token): -100.0 for token in (BAD, ODD)}}
"""For answers without the tokens that the model fails at."""


def agent(number: int, prefix: list[int] = PREFIX) -> list[int]:
    """A prompt that begins as all agents' do, and parts from each of them after that."""
    return prefix + tokens(SUFFIX, 10 + number)


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("f")


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("gated")
    return {kind: make_failing_model(root / kind, family) for kind, family in FAMILIES.items()}


@pytest.fixture
def kind() -> str:
    return "dense"


@pytest.fixture
def gate(kind: str, gated: dict[str, Path]) -> Gate:
    """The gate of the model of a test, closed."""
    gate = Gate(gated[kind])
    gate.close()
    return gate


@pytest.fixture
def start(
    home: Path, kind: str, gated: dict[str, Path], gate: Gate, forks: None
) -> Iterator[Start]:
    """Starts servers of the model of a test."""
    running: list[LmServer] = []

    def begin(*flags: str) -> LmServer:
        flags = ("--model", str(gated[kind]), "--trust-remote-code", *STEP, *flags)
        # At that level each request that waits has a line.
        running.append(serve_ours(home, *flags, forked=True, OMLX_CACHE_LOG_LEVEL="debug"))
        return running[-1]

    yield begin
    for server in running:
        server.kill()


@contextmanager
def computing(server: LmServer, prompt: list[int] | None = None) -> Iterator[tuple[Asking, Any]]:
    """Ask a server from threads, which computes the first agent's prompt, or another one."""
    prompt = prompt or agent(0)
    with asking(server) as there:
        first = there.ask(prompt)
        there.until_computing(len(prompt))
        yield there, first


def alone(theirs: LmServer, model: Path, prompt: list[int]) -> str:
    """What mlx-lm's server says to a prompt that it is asked alone."""
    with asking(theirs) as there:
        return there.ask(as_text(prompt), model=str(model)).result().text


def assert_shared(kind: str, first: Said, others: list[Said]) -> None:
    """All was computed once, and each suffix; of a dense model a part of a block besides."""
    assert first.cached == 0
    for other in others:
        if kind == "dense":
            assert len(PREFIX) - BLOCK < other.cached <= len(PREFIX)
        else:
            assert other.cached == len(PREFIX)


@pytest.mark.parametrize("kind", some(KINDS, "windowed"))
@pytest.mark.parametrize("count", some([2, 4], 4))
def test_agents_with_one_new_prefix_compute_it_once(
    kind: str,
    count: int,
    start: Start,
    gate: Gate,
    home: Path,
    models: dict[str, Path],
    theirs: LmServer,
) -> None:
    with computing(start()) as (server, first):
        others = [server.ask(agent(n)) for n in range(1, count)]
        server.until_held(count - 1)
        gate.open()
        assert_shared(kind, first.result(), [other.result() for other in others])
        waits = [line for line in server.server.text().splitlines() if WAITS in line]
        assert sorted(line.split(" - ")[1] for line in waits) == ["DEBUG"] * (count - 2) + ["INFO"]
        held = r".* request (\d+):.*, total ([\d.]+) s.*, held ([\d.]+) s for request 1$"
        lines = re.findall(held, server.server.text(), re.M)
        assert len(lines) == count - 1
        assert stats(home)["requests"]["restored_hot_tokens"] > len(PREFIX) - BLOCK
        (record,) = why_of(home, lines[0][0])
    assert lines[0][1] == f"{record['total_seconds']:.3f}"
    assert lines[0][2] == f"{record['held_seconds']:.1f}"
    assert record["total_seconds"] >= record["held_seconds"] > 0
    assert record["waited_for"] == 1
    assert "for request 1, which computed the same prefix." in record["words"]
    for number, each in enumerate([first, *others]):
        assert each.result().text == alone(theirs, models[kind], agent(number))


@pytest.mark.parametrize("kind", some(KINDS, "hybrid"))
def test_chats_with_one_new_system_prompt_compute_it_once(
    kind: str,
    start: Start,
    gate: Gate,
    gated: dict[str, Path],
    models: dict[str, Path],
    theirs: LmServer,
) -> None:
    """Whose segments mlx-lm stores where they end, and goes on doing so."""

    def chat(number: int) -> list[dict[str, str]]:
        question = f"{number}: what is the answer to question number {number}?"
        return [
            {"role": "system", "content": 3 * SYSTEM},
            {"role": "user", "content": question},
        ]

    with asking(start()) as server:
        asked = server.map(lambda n: ask(server.server, gated[kind], chat(n), **FINE), range(4))
        server.until_held(3)
        gate.open()
        turns = list(asked)
        again = ask(server.server, gated[kind], chat(2), **FINE)
    computed = sorted(turn.prompt_tokens - turn.cached_tokens for turn in turns)
    assert computed[-1] == turns[0].prompt_tokens
    own = len("0: what is the answer to question number 0?<\n<a\n>assistant")
    assert all(each <= own + BLOCK * (kind == "dense") for each in computed[:-1]), computed
    assert again.cached_tokens == again.prompt_tokens - 1
    for number, turn in enumerate(turns):
        assert turn.text == ask(theirs, models[kind], chat(number), **FINE).text


@pytest.mark.nightly
@pytest.mark.parametrize("kind", some(KINDS, "hybrid"))
def test_when_the_one_that_computes_is_aborted_another_goes_on_from_there(
    kind: str, start: Start, gate: Gate, models: dict[str, Path], theirs: LmServer
) -> None:
    gate.close(after=300)
    prompts = [agent(n) for n in range(3)]
    with asking(start("--snapshot-stride", "128")) as server:
        with stream_begun(server.server, prompts[0]):
            others = [server.ask(prompts[1]), server.ask(prompts[2])]
            server.until_held(2)
            server.until_computing(len(prompts[0]), 256)
        server.until(lambda: "client left" in server.server.text())
        done = max(server.progress_of(len(prompts[0])))
        gate.open()
        said = sorted((each.result() for each in others), key=lambda each: each.cached)
    # It was in its middle, and one of the others computed the rest, once.
    assert 256 <= done < len(PREFIX)
    assert done // 128 * 128 - 128 <= said[0].cached < len(PREFIX) - BLOCK
    assert said[1].cached > len(PREFIX) - BLOCK
    for prompt, each in zip(prompts[1:], others, strict=True):
        assert each.result().text == alone(theirs, models[kind], prompt)


@pytest.mark.parametrize("kind", some(KINDS, "dense"))
def test_what_was_prefilled_before_kill_9_is_restored(
    kind: str, start: Start, gate: Gate, home: Path, models: dict[str, Path], theirs: LmServer
) -> None:
    gate.close(after=520)
    flags, prompt = ("--snapshot-stride", "128"), agent(0)
    with asking(start(*flags)) as server, connected(server.server.url) as connection:
        connection.sendall(completion(prompt=prompt, **QUIET))
        server.until_computing(len(prompt), 400)
        wait_until_durable(home)
        server.server.kill()
    gate.open()
    with asking(start(*flags)) as server:
        again = server.ask(prompt).result()
    assert 256 <= again.cached < len(prompt) - BLOCK
    assert again.text == alone(theirs, models[kind], prompt)


def test_other_prompts_go_ahead_of_those_that_wait(start: Start, gate: Gate) -> None:
    with computing(start()) as (server, first):
        held = server.ask(agent(1))
        server.until_held(1)
        others = [server.ask(tokens(30, seed)) for seed in (3, 4)]
        assert [other.result().cached for other in others] == [0, 0]
        assert not first.done()
        assert not held.done()
        gate.open()
        assert held.result().status == 200
        assert server.server.text().count(WAITS) == 1


@pytest.mark.parametrize("fields", [{}, {"seed": 1}])
def test_a_waiting_request_whose_client_left_is_not_begun(
    start: Start, gate: Gate, fields: dict[str, int]
) -> None:
    """In the batch and behind it, and while another computes its prefix."""
    prompts = [agent(1), tokens(300, 3)]
    with computing(start("--prompt-concurrency", "1")) as (server, first):
        for prompt in prompts:
            with connected(server.server.url) as connection:
                connection.sendall(completion(prompt=prompt, **QUIET, **fields))
                # Nothing is logged when it is queued.
                time.sleep(0.5)
        if not fields:
            server.until(lambda: server.server.text().count("client left") == 2)
        gate.open()
        assert first.result().status == 200
        server.until(lambda: server.server.text().count("client left") == 2)
        assert not server.progress_of(300)
        assert "model failed" not in server.server.text()


def test_a_stream_that_waits_hears_of_it_and_then_its_answer(start: Start, gate: Gate) -> None:
    with computing(start()) as (server, first):
        with stream_begun(server.server, agent(1)) as connection:
            assert not first.done()
            assert WAITS in server.server.text()
            gate.open()
            answer = read_answer(connection, b"HTTP/1.0 200 OK\r\n\r\n").content.decode()
        assert answer.rstrip().endswith("data: [DONE]")
        expected = server.ask(agent(1)).result().text
        events = [json.loads(e[6:]) for e in answer.split("\n\n") if e.startswith("data: {")]
        assert "".join(event["choices"][0]["text"] for event in events) == expected


def test_those_that_wait_are_cut_off_when_the_server_ends(start: Start, gate: Gate) -> None:
    with computing(start("--drain-timeout", "0.1")) as (server, first):
        held = [server.ask(agent(n)) for n in (3, 4)]
        server.until_held(2)
        assert server.server.stop(signal.SIGTERM) == 0, server.server.text()[-3000:]
        for each in [first, *held]:
            assert (each.result().status, each.result().error) == (503, "the server is ending")


def test_the_error_of_the_one_that_computes_costs_those_that_wait_nothing(
    start: Start, gate: Gate, models: dict[str, Path], theirs: LmServer
) -> None:
    bad = [*agent(0), BAD, *tokens(90, 3)]
    with computing(start(), bad) as (server, first):
        others = [server.ask(agent(n)) for n in (1, 2)]
        server.until_held(2)
        gate.open()
        assert first.result().status == 500
        for number, other in enumerate(others, 1):
            assert other.result().cached > len(PREFIX) - BLOCK
            assert other.result().text == alone(theirs, models["dense"], agent(number))


def test_a_request_that_is_refused_is_not_waited_for(ours: LmServer) -> None:
    prompt = tokens(5 * BLOCK, 77)
    with asking(ours) as agents:
        before = ours.text().count(WAITS)
        assert agents.ask(prompt, logit_bias={"9999": 1.0}).result().status == 400
        assert agents.ask(prompt).result().status == 200
        assert ours.text().count(WAITS) == before
