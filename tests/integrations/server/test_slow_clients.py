"""Clients that stall, and what they may not do: hold a place for ever, or hold up the end."""

import json
import random
import signal
import threading
import time
from contextlib import suppress

import pytest

from kit.examples import some
from kit.wire import completion, connected, exchange, read_answer, request

from .conftest import Start

HALF = request(b'{"prompt": "a", ', "/v1/completions", "Content-Length: 32")
ENDLESS = completion(
    prompt="Count.", max_tokens=2**30, stream=True, logit_bias={"2": -100.0}, seed=None
)


@pytest.mark.parametrize("sent", some([b"", HALF[:40], HALF], HALF), ids=len)
@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_a_client_that_stalls_does_not_hold_up_the_end(
    sent: bytes, number: signal.Signals, start: Start
) -> None:
    server = start("dense")
    with connected(server.url) as connection:
        connection.sendall(sent)
        assert exchange(server.url, completion(prompt="a")).status == 200
        began = time.monotonic()
        assert server.stop(number) == 0, server.text()
        assert time.monotonic() - began < 8
        assert read_answer(connection).status == 0
    assert "Traceback" not in server.text()


@pytest.mark.parametrize("seed", some([None, 1], None), ids=["in a batch", "alone"])
def test_a_second_signal_cuts_off_an_answer_without_an_end(seed: int | None, start: Start) -> None:
    server = start("dense")
    with connected(server.url) as connection:
        endless = {"max_tokens": 2**30, "stream": True, "logit_bias": {"2": -100.0}, "seed": seed}
        connection.sendall(completion(prompt="Count.", **endless))
        first = connection.recv(1 << 12)
        server.process.send_signal(signal.SIGTERM)
        while "Draining" not in server.text():
            assert server.process.poll() is None
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        answer = read_answer(connection, first)
        assert server.wait() == 0, server.text()
    assert time.monotonic() - began < 10
    last = answer.content.strip().split(b"\n\n")[-1].removeprefix(b"data: ")
    assert json.loads(last)["error"]["message"] == "the server is ending"
    assert "Everything is on the disk" in server.text()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [None, 1], ids=["in a batch", "alone"])
def test_the_drain_timeout_cuts_off_an_answer_without_an_end(
    seed: int | None, start: Start
) -> None:
    server = start("dense", "--drain-timeout", "0.5", "--verbose")
    with connected(server.url) as connection:
        endless = {"max_tokens": 2**30, "logit_bias": {"2": -100.0}, "seed": seed}
        connection.sendall(completion(prompt="Count.", **endless))
        while "Prompt processing progress" not in server.text():
            assert server.process.poll() is None
        began = time.monotonic()
        assert server.stop() == 0, server.text()
        answer = read_answer(connection)
    assert time.monotonic() - began < 10
    assert (answer.status, answer.error) == (503, "the server is ending")


@pytest.mark.parametrize("seed", some(range(4), 0))
def test_a_signal_at_any_moment_ends_the_server(seed: int, start: Start) -> None:
    """Clients come and stall, and after a random while the server is asked to end, once or more."""
    chance = random.Random(seed)
    server = start("dense", "--drain-timeout", "2")
    ended = threading.Event()

    def visit(number: int) -> None:
        own = random.Random(f"{seed}.{number}")
        while not ended.is_set():
            sent = own.choice([completion(prompt="a" * own.randint(1, 300)), HALF, ENDLESS])
            try:
                with connected(server.url, 5) as connection:
                    connection.sendall(sent)
                    connection.settimeout(own.uniform(0.0, 0.3))
                    connection.recv(1 << 16)
            except OSError:
                continue

    visitors = [threading.Thread(target=visit, args=(number,)) for number in range(4)]
    try:
        for visitor in visitors:
            visitor.start()
        ended.wait(chance.uniform(0.0, 0.5))
        began = time.monotonic()
        for _ in range(chance.choice([1, 1, 2, 5])):
            with suppress(ProcessLookupError):
                server.process.send_signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
            ended.wait(chance.uniform(0.0, 0.05))
        assert server.wait() in (0, 1), server.text()
        assert time.monotonic() - began < 20, server.text()
    finally:
        ended.set()
        for visitor in visitors:
            visitor.join()
