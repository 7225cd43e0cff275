"""A request that cannot be answered gets 400 and a reason, and the server goes on."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kit.tinylm import Server
from omlx_cache.integrations.mlx_lm.server.requests import BadRequest, check_body

CHAT = {"messages": [{"role": "user", "content": "Well?"}]}
TEXT = {"prompt": "Well?"}

# Sent to `ours`, a model of 128 tokens: what was posted, and what the answer says of it.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt must be a string that is not empty"),
    ({"prompt": ["a", "b"]}, "prompt must be"),
    ({"prompt": [3, 128]}, "tokens from 0 to 127"),
    ({"prompt": [-1]}, "tokens from 0 to 127"),
    ({}, "prompt must be"),
    ({**CHAT, "stop": 5}, "stop must be a string"),
    ({**CHAT, "stop": ["a", ""]}, "stop must be"),
    ({**CHAT, "stop": "\ud800"}, "cannot be tokenised"),
    ({**CHAT, "logit_bias": {"999999": 1}}, "logit_bias must be of tokens from 0 to 127"),
    ({**CHAT, "logit_bias": {"-1": 1}}, "logit_bias must be of tokens from 0 to 127"),
    ({**CHAT, "seed": 1, "logit_bias": {"128": 1}}, "logit_bias must be of tokens"),
    ({**CHAT, "temperature": 2**63}, "temperature must be a number from -1e9 to 1e9"),
    ({**CHAT, "top_logprobs": True}, "top_logprobs must be a whole number"),
    ({**CHAT, "top_k": 128, "temperature": 1}, "top_k must be below 128"),
    ({**CHAT, "temperature": 1, "xtc_probability": 1.0, "xtc_threshold": 0.9}, "at most 0.5"),
    ({**CHAT, "max_tokens": 0}, "max_tokens must be at least 1"),
    ({**CHAT, "chat_template_kwargs": {"tokenize": False}}, "cannot be tokenised"),
]


class Reply(NamedTuple):
    status: int
    body: Any


def post(server: Server, body: dict[str, Any]) -> Reply:
    path = "chat/completions" if "messages" in body else "completions"
    request = urllib.request.Request(f"{server.url}/v1/{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Reply(answer.status, json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, json.load(error))


@pytest.mark.parametrize(("body", "reason"), REFUSED, ids=lambda value: str(value)[:50])
def test_an_impossible_request_is_refused_and_the_next_is_answered(
    body: dict[str, Any], reason: str, ours: Server
) -> None:
    reply = post(ours, {"max_tokens": 4, **body})
    assert reply.status == 400
    assert reason in reply.body["error"]
    assert post(ours, {**TEXT, "max_tokens": 1}).status == 200
    assert ours.process.poll() is None


def test_a_draft_model_does_not_let_them_through(ours: Server, models: dict[str, Path]) -> None:
    drafted = {**CHAT, "max_tokens": 4, "draft_model": str(models["draft"])}
    assert post(ours, {**drafted, "logit_bias": {"999999": 1}}).status == 400
    assert post(ours, drafted).status == 200


def test_a_list_of_tokens_is_the_prompt_that_it_spells(ours: Server) -> None:
    options = {"max_tokens": 6, "temperature": 0, "logit_bias": {"2": -100.0}}
    tokens = post(ours, {"prompt": [13, 13, 14, 15] * 3, **options})
    # The three special tokens come first, then string.printable.
    text = post(ours, {"prompt": "aabc" * 3, **options})
    assert tokens.status == text.status == 200
    assert tokens.body["usage"]["prompt_tokens"] == 12
    assert tokens.body["choices"] == text.body["choices"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": float("nan")},
        {"top_p": "0.9"},
        {"presence_penalty": 10**400},
        {"frequency_penalty": None},
        {"logit_bias": [1]},
        {"logit_bias": {"the": 1}},
        {"logit_bias": {"1": None}},
        {"logit_bias": {"1": float("inf")}},
        {"top_logprobs": True},
        {"max_completion_tokens": 2**31},
        {"top_k": 1.5},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": True},
        {"stop": [1]},
        {"stream_options": 3},
        {"stream_options": {"other": 1}},
        {"chat_template_kwargs": []},
        {"messages": []},
        {"messages": "hello"},
        {"messages": ["hello"]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": ["text"]}]},
    ],
    ids=lambda value: str(value)[:50],
)
def test_the_wrong_field_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        check_body({**CHAT, **wrong}, chat=True)


def test_what_clients_send_passes() -> None:
    parts = [{"type": "text", "text": "Well?"}]
    call = {"role": "assistant", "content": None, "tool_calls": []}
    messages = [{"role": "user", "content": parts}, call, {"role": "tool", "content": "4"}]
    for stop in (None, "", "x", [], ["x", "y"]):
        check_body({"messages": messages, "stop": stop, "logit_bias": None}, chat=True)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    check_body({**CHAT, **usage, "seed": None, "temperature": 1, "logit_bias": {"5": -100}},
               chat=True)  # fmt: skip
    check_body({"prompt": "x"}, chat=False)
