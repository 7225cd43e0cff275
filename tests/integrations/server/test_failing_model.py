"""An error in a model's computation, or in a request's options, ends one request."""

import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kit.tinylm import LmServer, serve_ours
from kit.tinylm.saved import BAD, ODD, make_failing_model
from kit.wire import Answer, completion, exchange

from .in_flight import tokens

LONG = {"max_tokens": 120, "logit_bias": {"2": -100.0, str(BAD): -100.0}}
FAILED = "the model failed: RuntimeError: the bad token"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, forks: None) -> Iterator[LmServer]:
    home = tmp_path_factory.mktemp("failing")
    model = make_failing_model(home / "model")
    server = serve_ours(home, "--model", str(model), "--trust-remote-code", forked=True)
    yield server
    assert server.stop() == 0, server.text()


def ask(server: LmServer, **fields: Any) -> Answer:
    return exchange(server.url, completion(**fields))


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer
    return str(json.loads(answer.content)["choices"][0]["text"])


def streamed(answer: Answer) -> str:
    """The text of a stream, which must have come to its end."""
    lines = [line[6:] for line in answer.content.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", answer
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])


@pytest.mark.parametrize("seed", [None, 1], ids=["in a batch", "alone"])
def test_a_prompt_that_fails_gets_500(seed: int | None, server: LmServer) -> None:
    bad = [*tokens(70, seed or 0), BAD, 5]
    first = ask(server, prompt=bad, seed=seed)
    assert (first.status, first.error) == (500, FAILED)
    assert ask(server, prompt=bad[:-2], seed=seed).status == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ""},
        {"prompt": [7, 10**6]},
        {"prompt": {"a": 1}},
        {"stop": [1]},
        {"temperature": math.nan},
        {"logit_bias": {"5": math.nan}},
    ],
)
def test_what_cannot_be_computed_gets_400(wrong: dict[str, Any], server: LmServer) -> None:
    answer = ask(server, **{"prompt": "fine", **wrong})
    assert answer.status == 400, answer
    assert ask(server, prompt=tokens(90, 3)).status == 200


def test_the_others_of_its_batch_go_on_as_if_nothing_had_happened(server: LmServer) -> None:
    """Tried again where the others were not in one batch with the one that fails."""
    alone = [text_of(ask(server, prompt=tokens(90, n), **LONG)) for n in (11, 12, 13)]
    for attempt in range(8):
        begun = threading.Barrier(4, timeout=60)
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(_stream, server, number, begun) for number in (11, 12, 13)]
            failing = pool.submit(_fail, server, 14 + attempt, begun)
            assert (failing.result().status, failing.result().error) == (500, FAILED)
            assert [each.result() for each in streams] == alone
        if "each is computed alone" in server.text():
            return
    raise AssertionError("they were never computed together")


def _stream(server: LmServer, number: int, begun: threading.Barrier) -> str:
    begun.wait()
    return streamed(ask(server, prompt=tokens(90, number), stream=True, **LONG))


def _fail(server: LmServer, number: int, begun: threading.Barrier) -> Answer:
    begun.wait()
    return ask(server, prompt=tokens(90, number), max_tokens=9, logit_bias={str(BAD): 100.0})


def test_a_failure_in_the_middle_of_an_answer_ends_its_stream_with_the_error(
    server: LmServer,
) -> None:
    forced = {"logit_bias": {str(BAD): 100.0}, "max_tokens": 5}
    answer = ask(server, prompt=tokens(90, 60), stream=True, **forced)
    assert answer.status == 200
    last = answer.content.strip().split(b"\n\n")[-1]
    assert json.loads(last.removeprefix(b"data: ")) == {"error": {"message": FAILED, "code": 500}}
    whole = ask(server, prompt=tokens(90, 61), **forced)
    assert (whole.status, whole.error) == (500, FAILED)
    assert ask(server, prompt=tokens(90, 62)).status == 200


def test_what_failed_leaves_nothing_in_the_cache_that_others_would_restore(
    server: LmServer,
) -> None:
    asked = tokens(200, 70)
    assert ask(server, prompt=[*asked, BAD, 4]).status == 500
    first = ask(server, prompt=asked, **LONG)
    other = ask(server, prompt=asked, **LONG)
    assert text_of(first) == text_of(other)


def test_an_error_outside_the_model_ends_its_request_and_not_the_server(server: LmServer) -> None:
    """Too few logits for the eleven best: an error of the server's loop, between two steps."""
    odd = {"prompt": [*tokens(90, 80), ODD], "top_logprobs": 11}
    answer = ask(server, **odd)
    assert answer.status == 500
    assert "argpartition" in answer.error
    assert ask(server, prompt=tokens(90, 81)).status == 200
