"""The next prompt of a conversation is computed while nobody waits."""

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from mlx_lm import server as upstream

from kit.examples import some
from kit.remote.processes import until
from kit.templates import TEMPLATES
from kit.versions import BEFORE_0_32
from kit.wire import connected
from omlx_cache import BlockStore
from omlx_cache.integrations.mlx_lm.preparing import (
    BACK_OFF_SECONDS,
    EXPIRES_SECONDS,
    POWER_SECONDS,
    Preparing,
)
from omlx_cache.integrations.mlx_lm.requests import ServedRequest
from omlx_cache.integrations.mlx_lm.responses import Responses
from omlx_cache.preparation import Preparation
from omlx_cache.scope import Pace
from omlx_cache_daemon.commands.stats import _brief
from omlx_cache_storage.keys import BlockKey

from .playing import CALLS, Client, Playing, make_chat_model, playing

Play = Callable[..., AbstractContextManager[Playing]]
KNOWN = 5
"""By then a client has sent both kinds of answers back."""
COMBINATIONS = [(t, f) for t in TEMPLATES for f in ("qwen3", "qwen3_next", "gemma3_text")]


@pytest.fixture
def play(
    tmp_path: Path, open_store: Callable[..., BlockStore], monkeypatch: pytest.MonkeyPatch
) -> Play:
    """Plays a model with a template and a store with settings."""

    @contextmanager
    def begin(family: str, template: str, *flags: str, **settings: Any) -> Iterator[Playing]:
        folder = tmp_path / f"{family}-{template}"
        model = folder if folder.exists() else make_chat_model(folder, family, template)
        store = open_store(**{"hot_cache_only": True, "prepare": "auto", **settings})
        with monkeypatch.context() as patches, playing(model, store, patches, *flags) as made:
            yield made

    return begin


@pytest.mark.parametrize(
    ("template", "family"),
    some(COMBINATIONS, ("loop_last", "qwen3"), ("loop_stripped", "qwen3_next")),
)
def test_what_is_computed_after_arrival_is_what_the_client_adds(
    template: str, family: str, play: Play
) -> None:
    computed: dict[str, list[int]] = {}
    for prepare in ("off", "auto"):
        with play(family, template, prepare=prepare) as server:
            client, arrived = Client(server, "a", 1), []
            for turn in range(len(CALLS)):
                before = server.stats.prefilled_tokens + server.stats.prepared_tokens
                answered = client.ask(template)
                arrived.append(answered.prompt - answered.cached)
                if prepare == "auto" and turn >= KNOWN:
                    prompt, expected = server.prompts[-1], server.expected[turn - 1]
                    assert arrived[-1] <= 1.05 * server.behind(prompt, expected) + 1
                server.settle()
                all_computed = server.stats.prefilled_tokens + server.stats.prepared_tokens
                computed.setdefault(prepare, []).append(all_computed - before)
            if prepare == "auto":
                assert len(server.expected) == len(CALLS)
                assert server.stats.prepared_asked_tokens > 0
            else:
                assert not server.expected
    with_it, without = (sum(computed[prepare][KNOWN:]) for prepare in ("auto", "off"))
    assert with_it <= 1.1 * without


@pytest.mark.skipif(BEFORE_0_32, reason="mlx-lm: its server has no --kv-bits")
@pytest.mark.parametrize("start", [0, 200])
def test_behind_packed_caches_the_same_is_computed_as_without_preparation(
    start: int, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", str(start)]
    computed: list[Any] = []

    def note(tokens: Any, logits: Any) -> Any:
        computed.append(logits.tolist())
        return logits

    for prepare in ("off", "auto"):
        played = play("qwen3", "loop_last", *flags, prepare=prepare)
        with played as server, monkeypatch.context() as patches:
            players = upstream._make_logits_processors
            patches.setattr(
                upstream, "_make_logits_processors", lambda args, p=players: [note, *p(args)]
            )
            client = Client(server, "a", 1)
            for _ in range(4):
                client.ask("loop_last")
                server.settle()
            records = server.responses._store.requests.records()
            asked = [one for one in records if one.prepared_tokens]
            assert bool(asked) is (prepare == "auto")
            # What it went on from was packed.
            assert all(one.restored_tokens - one.prepared_tokens >= max(1, start) for one in asked)
    assert computed[: len(computed) // 2] == computed[len(computed) // 2 :]


@pytest.mark.parametrize("family", some(["qwen3", "qwen3_next"], "qwen3"))
def test_after_an_edit_and_after_an_abort_the_next_turns_are_prepared_again(
    family: str, play: Play
) -> None:
    with play(family, "loop_last") as server:
        client = Client(server, "a", 2)
        for turn in range(len(CALLS)):
            if turn == 6:
                client.messages[1]["content"] += " no, what else"
            if turn == 7:
                # It reads a little, and leaves.
                client.leave("loop_last")
            answered = client.ask("loop_last")
            server.settle()
            if turn in (5, 8, 9):
                behind = server.behind(server.prompts[-1], server.expected[turn - 1])
                assert answered.prompt - answered.cached <= 1.05 * behind + 1
        assert len(server.expected) == len(CALLS)


def test_nothing_is_prepared_for_who_does_not_go_on(play: Play) -> None:
    with play("qwen3", "plain") as server:
        alone = [{"role": "user", "content": "what [a]"}]
        answer = [*server.encode("the old tests"), 2]
        server.answers["a"] = answer
        goes_on = [*alone, {"role": "assistant", "content": "the old tests"}, *alone]
        for messages, fields in (
            (alone, {"tools": None}),
            # It was cut short: nobody knows how its client goes on.
            (goes_on, {"max_tokens": 2}),
        ):
            server.ask(messages, **fields)
            server.settle()
        assert not server.expected
        server.ask(goes_on, tools=None)
        server.settle()
        assert len(server.expected) == 1


def test_nothing_is_expected_where_memory_keeps_nothing(play: Play) -> None:
    with play("qwen3", "plain", hot_cache_only=False, hot_bytes=0) as server:
        Client(server, "a", 1).ask("plain")
        server.settle()
        assert not server.expected


def test_nothing_is_prepared_after_a_client_left(play: Play) -> None:
    with play("qwen3", "plain") as server:
        server.answers["a"] = [*server.encode("the old tests ") * 200, 2]
        with connected(server.url) as connection:
            connection.sendall(server.sent([{"role": "user", "content": "what [a]"}], stream=True))
            assert connection.recv(1)
        assert not server.noted.acquire(timeout=0.5)
        assert not server.expected


def test_a_request_that_comes_meanwhile_takes_over_what_was_computed(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with play("qwen3", "loop_stripped") as server:
        client = Client(server, "a", 1)
        for _ in range(3):
            client.ask("loop_stripped")
            server.settle()
        compute, requests = Preparation._compute, server.responses.requests

        def slowly(self: Any, *arguments: Any) -> None:
            compute(self, *arguments)
            while not requests.qsize():
                threading.Event().wait(0.001)

        monkeypatch.setattr(Preparation, "_compute", slowly)
        monkeypatch.setattr(Pace, "tokens", 32)
        prepared = server.stats.prepared_tokens
        # A whole tool loop is written anew.
        client.ask("loop_stripped")
        while server.stats.prepared_tokens == prepared:
            threading.Event().wait(0.005)
        answered = client.ask("loop_stripped")
        prompt, expected = server.prompts[-1], server.expected[3]
        assert prompt[: len(expected)] == expected
        store = server.responses._store
        assert store.requests.records()[-1].prepared_tokens == 32
        server.noted.acquire(timeout=60.0)
        assert ", 32 prepared while idle)" in caplog.text
        assert "32 of them prepared while idle" in store.why().requests[0].words
        assert "tokens while idle, " in _brief(store.stats())
        assert len(expected) - answered.cached > 32
        assert max(server.waits) <= 1


def test_requests_that_come_while_their_turn_is_prepared_wait_for_one_chunk_at_most(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "tokens", 8)
    with play("qwen3", "loop_stripped", block_size=16) as server:
        clients = [Client(server, name, seed) for seed, name in enumerate("ab")]
        for turn in range(16):
            clients[turn % 2].ask("loop_stripped")
            assert server.noted.acquire(timeout=60.0)
            threading.Event().wait(0.02 * (turn % 4))
        assert len(server.waits) == 16
        assert max(server.waits) <= 1
        assert server.stats.prepared_asked_tokens > 0


def test_of_ten_thousand_arrivals_none_waits_for_more_than_one_chunk() -> None:
    class Counting:
        """A preparation without end."""

        ready, steps = True, 0

        def step(self, *_: Any) -> None:
            self.steps += 1
            # As a model does while it computes.
            time.sleep(1e-5)

        def give_up(self, prompt: Any) -> None: ...

    made: Any = Responses.__new__(Responses)
    made._preparing, made._is_distributed = Counting(), False
    made._at_work, made.coming = weakref.WeakKeyDictionary(), set()
    made.model_provider = SimpleNamespace(model_key=None, model=None)
    made.requests = Queue()
    taken, waits = threading.Semaphore(0), []

    def arrive() -> None:
        for number in range(10_000):
            time.sleep(number % 7 * 1e-5)
            request = SimpleNamespace(served=ServedRequest(lambda how: None, False))
            made.requests.put((made._preparing.steps, request, None))
            taken.acquire()

    client = threading.Thread(target=arrive)
    client.start()
    while len(waits) < 10_000:
        found = made._next_request(0.1)
        if found is not None:
            # The one that was begun before it came, and one between a look and the arrival.
            waits.append(made._preparing.steps - found[0].queue)
            taken.release()
    client.join()
    assert max(waits) <= 1
    assert made._preparing.steps > 10_000


def test_nothing_is_prepared_from_a_requests_first_byte_on(play: Play) -> None:
    with play("qwen3", "plain") as played:
        responses = played.responses
        sent = played.sent([{"role": "user", "content": "the old tests"}])
        with connected(played.url, 60) as connection:
            connection.sendall(sent[:-1])
            until(lambda: bool(responses.coming))
            assert responses._is_busy
        # Its client has gone.
        until(lambda: not responses.coming)
        assert not responses._is_busy


def test_any_thread_may_ask_whether_there_are_requests_while_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Responses, "_generate", lambda self: self.loaded.set())
    flags = SimpleNamespace(chat_template_args={})
    store: Any = SimpleNamespace(requests=None, settings=None)
    made = Responses(SimpleNamespace(cli_args=flags), store, lambda name: 1)
    made.stop(60.0, threading.Event())
    made.cutting = False
    coming = [SimpleNamespace(served=ServedRequest(lambda how: None, False)) for _ in range(6000)]
    for request in coming:
        request.served.is_over = True
        made.requests.put((Queue(), request, None))

    def take() -> None:
        while made._next_request() is not None:
            pass

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=take)
        thread.start()
        while thread.is_alive():
            made._is_busy  # noqa: B018
        assert not made._is_busy
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_after_five_in_a_row_that_nobody_asked_for_it_backs_off(play: Play) -> None:
    with play("qwen3", "plain") as server:
        made, now = server.responses._preparing, [0.0]
        made._clock = lambda: now[0]
        for number in range(7):
            Client(server, f"client {number}", number).ask("plain")
            server.settle(max(0, number - 4))
        now[0] = BACK_OFF_SECONDS
        while len(made._expected) == 2:
            threading.Event().wait(0.005)
        # One is tried; what a client has asked for says that the next ones are worth it.
        assert len(made._expected) == 1
        assert made._store.requests.prepared.unasked(5)


SYSTEM = list(range(50))


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def preparing(open_store: Callable[..., BlockStore], now: list[float]) -> Preparing:
    """Begins preparations that are never over by themselves."""
    begun = SimpleNamespace(ready=True, computed=0, is_over=False, close=lambda: None)
    cache: Any = SimpleNamespace(preparation=lambda key, tokens, most: begun)
    made = Preparing(open_store(prepare="auto"), cache, lambda: False, lambda: now[0])
    assert made.is_worth_it
    return made


def expect(preparing: Preparing, *names: int) -> None:
    for name in names:
        prompt = [*SYSTEM, name]
        preparing.expect("key", [*prompt, 7, 8], 100, prompt, preparing._store.deletions)


def expected(preparing: Preparing) -> list[int]:
    return [int(one.tokens[50]) for one in preparing._expected]


def test_the_latest_conversation_is_prepared_first_and_an_interrupted_one_goes_on(
    preparing: Preparing,
) -> None:
    expect(preparing, 1, 2, 3)
    preparing.step("key", None)
    assert expected(preparing) == [1, 2]
    # A stranger with the same system prompt.
    preparing.give_up([*SYSTEM, 4])
    assert expected(preparing) == [1, 2, 3]


@pytest.mark.parametrize("rest", [[7, 8, 9], [], [5]], ids=["goes on", "again", "otherwise"])
def test_what_was_expected_of_a_conversation_is_dropped_when_it_goes_on(
    rest: list[int], preparing: Preparing
) -> None:
    expect(preparing, 1, 2, 3)
    preparing.give_up([*SYSTEM, 2, *rest])
    assert expected(preparing) == [1, 3]


@pytest.mark.parametrize("why", ["old", "deleted"])
def test_what_is_old_or_was_deleted_is_not_prepared(
    why: str, preparing: Preparing, now: list[float]
) -> None:
    expect(preparing, 1, 2)
    if why == "old":
        now[0] = EXPIRES_SECONDS + 1
    else:
        preparing._store.clear(BlockKey(bytes(32)))
    assert preparing.is_worth_it
    preparing.step("key", None)
    assert expected(preparing) == ([1, 2] if why == "old" else [1])
    assert preparing._current is None


def test_power_is_asked_for_now_and_then(open_store: Callable[..., BlockStore], cache: Any) -> None:
    asked, now, threads = [False, True, False], [0.0], []

    def power() -> bool:
        threads.append(threading.current_thread())
        return asked.pop(0)

    assert not Preparing(open_store(prepare="off"), cache).is_worth_it
    made = Preparing(open_store(prepare="auto"), cache, power, lambda: now[0])
    assert [made.is_worth_it, made.is_worth_it] == [True, True]
    now[0] = 31.0
    assert [made.is_worth_it, made.is_worth_it] == [False, False]
    made.expect("key", [1, 2], 100, [1], made._store.deletions)
    assert not made.ready
    assert len(threads) == 2
    # Before one is begun it is asked for anew, and not on the model's thread.
    now[0] = 62.0
    while not made.ready:
        threading.Event().wait(0.005)
    assert threading.current_thread() not in threads[2:]
    assert len(threads) == 3


@pytest.mark.parametrize("age", [EXPIRES_SECONDS, EXPIRES_SECONDS + 1])
def test_for_what_is_old_the_power_is_not_asked_for(
    age: float, preparing: Preparing, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", lambda self: begun.append(self))
    expect(preparing, 1, 2)
    now[0] = age
    assert not preparing.ready
    assert len(begun) == (age <= EXPIRES_SECONDS)


def test_on_its_battery_a_machine_computes_nothing_more(
    preparing: Preparing, now: list[float]
) -> None:
    expect(preparing, 1)
    preparing.step("key", None)
    assert preparing._current is not None
    preparing._power = lambda: True
    now[0] = POWER_SECONDS + 1
    while not preparing._saves:
        preparing.step("key", None)
    preparing.step("key", None)
    assert preparing._current is None
    assert expected(preparing) == [1]
    assert not preparing.ready


def test_without_a_thread_the_power_is_asked_for_later(
    preparing: Preparing, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    expect(preparing, 1)
    now[0] = POWER_SECONDS + 1
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", start)
        assert not preparing.ready
    while not preparing.ready:
        threading.Event().wait(0.005)
