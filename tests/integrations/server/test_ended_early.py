"""What the log says of requests that did not end by themselves: what was computed, and no more."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.tinylm import LmServer, serve_ours
from kit.wire import completion, connected, read_answer

from .in_flight import QUIET, STEP, asking, stream_begun, tokens

LENGTH = 3000
RESTED = "0 restored (0 hot, 0 cold), "


@pytest.fixture
def server(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, forks: None
) -> Iterator[LmServer]:
    flags = ("--model", str(models["dense"]), "--drain-timeout", "0.01", *STEP)
    server = serve_ours(tmp_path_factory.mktemp("early"), *flags, forked=True)
    yield server
    server.kill()


def line(server: LmServer) -> str:
    """The line of the one request."""
    found = re.findall(r"request(?: \d+)?: .*", server.text())
    assert len(found) == 1, found
    return str(found[0])


def assert_figures_are_true(text: str, end: str) -> None:
    match = re.fullmatch(
        rf"request 1: {LENGTH} tokens in, {re.escape(RESTED)}(\d+) of {LENGTH} recomputed "
        rf"\(\w+\), 0 out, total \d+\.\d+ s, {end}",
        text,
    )
    assert match, text
    assert 0 < int(match[1]) < LENGTH


def test_a_client_that_left_in_the_prefill(server: LmServer) -> None:
    with asking(server) as here:
        with stream_begun(server, tokens(LENGTH, 1)):
            here.until_computing(LENGTH, 8)
        here.until(lambda: "client left" in server.text())
    assert_figures_are_true(line(server), "client left")


@pytest.mark.parametrize("alone", [False, True])
def test_a_client_that_left_without_a_stream(server: LmServer, alone: bool) -> None:
    with asking(server) as here:
        with connected(server.url) as connection:
            seed = {"seed": 1} if alone else {}
            connection.sendall(completion(prompt=tokens(LENGTH, 1), **QUIET, **seed))
            here.until_computing(LENGTH, 8)
        here.until(lambda: "client left" in server.text())
    assert_figures_are_true(line(server), "client left")
    assert "ERROR" not in server.text()


@pytest.mark.parametrize("alone", [False, True])
def test_a_client_that_closed_its_half_is_told(server: LmServer, alone: bool) -> None:
    with asking(server) as here, connected(server.url) as connection:
        seed = {"seed": 1} if alone else {}
        connection.sendall(completion(prompt=tokens(LENGTH, 1), **QUIET, **seed))
        here.until_computing(LENGTH, 8)
        connection.shutdown(socket.SHUT_WR)
        answer = read_answer(connection)
    assert answer.status == 499
    assert "closed its connection" in answer.error
