"""Who answers late, and what is thought of it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx_cache_daemon.errors import NobodyThere
from omlx_cache_daemon.service.peers import Ask, Peer, Peers
from omlx_cache_daemon.stores import RunningStore


@pytest.fixture
def peers() -> Iterator[Peers]:
    store = RunningStore(Path("/nowhere/store-10.sock"), 10)
    opened = Peers(lambda: [store])
    yield opened
    opened.close()


def _late(peer: Peer, ask: Ask) -> object:
    raise NobodyThere("it did not answer in time")


def _prompt(peer: Peer, ask: Ask) -> object:
    return "here"


def test_whoever_is_late_with_work_is_asked_again_at_once(peers: Peers) -> None:
    [late] = peers.ask(_late, is_work=True)
    assert late.error
    [reply] = peers.ask(_prompt)
    assert (reply.answer, reply.error) == ("here", None)


def test_whoever_does_not_say_how_it_is_is_left_alone_for_a_while(peers: Peers) -> None:
    peers.ask(_late)
    asked = threading.Event()
    [reply] = peers.ask(lambda peer, ask: asked.set())
    assert reply.error
    assert not asked.is_set()
