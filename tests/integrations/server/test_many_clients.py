"""Clients that come all at once are all answered."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.examples import some
from kit.tinylm import LmServer
from kit.wire import completion, connected, read_answer


@pytest.mark.parametrize("clients", some([64, 256], 64))
def test_none_of_many_clients_at_once_is_lost(clients: int, ours: LmServer) -> None:
    together = threading.Barrier(clients, timeout=60)

    def ask(number: int) -> int:
        sent = completion(prompt=f"Client {number} of {clients}")
        together.wait()
        with connected(ours.url, 120) as connection:
            connection.sendall(sent)
            return read_answer(connection).status

    with ThreadPoolExecutor(clients) as pool:
        assert list(pool.map(ask, range(clients))) == [200] * clients
