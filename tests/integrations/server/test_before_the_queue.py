"""What a client's thread does before its request is queued."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from omlx_cache.flights import Flights
from omlx_cache.integrations.mlx_lm import responses
from omlx_cache.integrations.mlx_lm.requests import ServedRequest, check_tokens
from omlx_cache.integrations.mlx_lm.responses import Responses


@pytest.fixture
def generator() -> Any:
    """A response generator without its thread."""
    made: Any = Responses.__new__(Responses)
    made._arriving, made.cutting = threading.Lock(), False
    made._store = SimpleNamespace(flights=Flights())
    made.model_provider = SimpleNamespace(model_key=("a model", None, None))
    return made


class Flight:
    """A prompt in flight."""

    number = None

    def end(self) -> None: ...


def served() -> ServedRequest:
    made = ServedRequest(lambda how: None, False)
    made.parts = ([1, 2, 3], [[1, 2, 3]], ["assistant"], "normal", None)
    return made


def test_a_request_whose_blocks_cannot_be_looked_up_does_not_fail(generator: Any) -> None:
    def fails(*_: Any) -> Any:
        raise OSError("the disk is gone")

    generator.cache = SimpleNamespace(awaited=fails)
    assert generator._is_first(served())


def test_who_waits_does_not_pause_for_what_others_take(
    generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([Flight(), None])

    def awaited(*_: Any) -> Any:
        threading.Event().wait(0.3)
        return next(looks)

    flights: Flights = generator._store.flights
    monkeypatch.setattr(flights.on_change, "wait", lambda seconds: True)
    generator.cache = SimpleNamespace(awaited=awaited, flight=lambda *_: Flight())
    slept: list[float] = []
    clock = SimpleNamespace(**{name: getattr(time, name) for name in dir(time)})
    clock.sleep = slept.append
    monkeypatch.setattr(responses, "time", clock)
    generator._wait(served(), 3, lambda done, total: None)
    assert len(slept) == 1
    assert slept[0] < 0.3 * responses.PAUSES / 2


def test_a_vocabulary_is_counted_once() -> None:
    class Tokenizer:
        counted = 0

        def get_vocab(self) -> dict[str, int]:
            self.counted += 1
            return {"a": 0, "b": 9}

    tokenizer = Tokenizer()
    check_tokens([9], tokenizer)
    check_tokens([], tokenizer)
    with pytest.raises(ValueError, match="from 0 to 9"):
        check_tokens([10], tokenizer)
    assert tokenizer.counted == 1
