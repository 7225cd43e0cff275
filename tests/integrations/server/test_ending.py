"""Clients that come while the server ends are told so at once."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.tinylm import serve_ours
from kit.wire import completion, connected, read_answer
from omlx_cache.integrations.mlx_lm.server.http import HttpServer, bind
from omlx_cache.integrations.mlx_lm.server.limits import Limits

from .in_flight import STEP, asking, tokens

LONG_PROMPT = tokens(6000, 1)


class Unattended(HttpServer):
    """Nobody takes connections from the system's queue."""

    def shutdown(self) -> None:
        """There is no loop to end."""


def test_nobody_listens_while_requests_under_way_end(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, forks: None
) -> None:
    flags = ("--model", str(models["dense"]), *STEP)
    server = serve_ours(tmp_path_factory.mktemp("end"), *flags, forked=True)
    try:
        with asking(server) as here:
            under_way = here.ask(LONG_PROMPT)
            here.until_computing(len(LONG_PROMPT))
            server.process.send_signal(15)
            here.until(lambda: "Draining" in server.text())
            with pytest.raises(ConnectionRefusedError), connected(server.url, 5.0):
                pass
            server.process.send_signal(15)
            under_way.result()
    finally:
        server.kill()


def test_who_is_in_the_systems_queue_is_refused_with_a_word() -> None:
    limits = Limits()
    responses = SimpleNamespace(cli_args=SimpleNamespace(allowed_origins=["*"]))
    server = Unattended(bind("127.0.0.1", 0), responses, limits)
    try:
        with connected(server.url, 5.0) as connection:
            connection.sendall(completion(prompt="Hello"))
            server.stop_listening()
            answer = read_answer(connection)
    finally:
        server.hang_up()
    assert (answer.status, answer.error) == (503, "the server is ending")
