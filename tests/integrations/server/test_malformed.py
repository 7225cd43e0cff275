"""Whatever bytes a client sends: an answer that says what is wrong, or a closed connection."""

import json

import pytest

from kit.tinylm import Server
from kit.wire import Answer, completion, exchange, request

GOOD = json.dumps({"prompt": "Well?", "max_tokens": 1}).encode()


def ask(server: Server, body: bytes, *headers: str) -> Answer:
    return exchange(server.url, request(body, "/v1/completions", *headers))


BODIES = [
    (b'{"prompt": "\xff\xfe"}', "must be UTF-8: byte 12"),
    ('{"prompt": "é"}'.encode("utf-16"), "must be UTF-8"),
    (b"\xef\xbb\xbf" + GOOD, "Invalid JSON"),
    (b"", "Invalid JSON"),
    (b"[" * 100_000 + b"]" * 100_000, "nested at most 100 deep"),
    (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "nested at most 100 deep"),
    (b'{"prompt": "a", "seed": ' + b"9" * 5_000 + b"}", "at most 400 digits"),
    (b'{"prompt": "a", "temperature": NaN}', "NaN in the body"),
    (b'{"prompt": "a", "x": [-Infinity]}', "-Infinity in the body"),
    (b'{"prompt": "a", "prompt": "b"}', "'prompt' twice"),
    (b'{"prompt": "a", "temperature": 1e999}', "temperature must be a number"),
    (b'{"prompt": [' + b"1," * (1 << 20) + b"1]}", "at most 1048576 values"),
    (b'"text"', "should be a JSON dictionary"),
    (b'{"prompt": "a", "max_tokens": 99999999999999999999}', "max_tokens must be"),
    (b'{"prompt": "a", "draft_model": [1]}', "draft_model must be a string"),
    (b'{"prompt": "a", "num_draft_tokens": 1000000}', "num_draft_tokens must be at most 256"),
    (b'{"prompt": "a", "stop": "' + b"x" * 5_000 + b'"}', "stop must be at most 4096 characters"),
    (b'{"prompt": "a", "tools": [1]}', "tools must be a list of objects"),
    (b'{"prompt": "a", "logit_bias": {"' + b"9" * 5_000 + b'": 1}}', "logit_bias must be"),
]


@pytest.mark.parametrize(("body", "reason"), BODIES, ids=lambda value: repr(value)[:30])
def test_a_body_that_is_no_request_gets_400_and_the_reason(
    body: bytes, reason: str, ours: Server
) -> None:
    answer = ask(ours, body)
    assert answer.status == 400
    assert reason in answer.error


FIELDS = ["model", "draft_model", "adapters", "stream", "stream_options", "max_tokens",
          "temperature", "max_completion_tokens", "top_p", "top_k", "min_p", "logit_bias",
          "repetition_penalty",
          "repetition_context_size", "presence_penalty", "frequency_penalty", "xtc_probability",
          "xtc_threshold", "logprobs", "top_logprobs", "seed", "chat_template_kwargs", "stop",
          "num_draft_tokens", "tools", "messages", "role_mapping"]  # fmt: skip
WRONG = [[[]], {"a": {}}, "\ud800", -1.5, True, 10**300]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_any_wrong_type_is_the_clients_mistake(field: str, ours: Server) -> None:
    for wrong in WRONG:
        body = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1,
                           field: wrong}).encode()  # fmt: skip
        answer = exchange(ours.url, request(body, "/v1/chat/completions"))
        assert answer.status in (200, 400, 404), (wrong, answer)
    assert exchange(ours.url, completion(prompt="a")).status == 200


HEADERS = [
    (["Content-Length: -5"], 400, "Invalid Content-Length"),
    (["Content-Length: +5"], 400, "Invalid Content-Length"),
    (["Content-Length: 1_0"], 400, "Invalid Content-Length"),
    (["Content-Length: five"], 400, "Invalid Content-Length"),
    (["Content-Length: 5", "Content-Length: 6"], 400, "Invalid Content-Length"),
    (["Content-Length: " + "9" * 6_000], 413, "--max-body-bytes"),
    (["Content-Length: 33554433"], 413, "at most 33554432 bytes (serve --max-body-bytes)"),
    (["Transfer-Encoding: chunked", "Content-Length: 5"], 411, "Transfer-Encoding"),
]


@pytest.mark.parametrize(("headers", "status", "reason"), HEADERS, ids=lambda v: repr(v)[:40])
def test_a_length_that_is_none_is_refused_unread(
    headers: list[str], status: int, reason: str, ours: Server
) -> None:
    answer = ask(ours, GOOD, *headers)
    assert answer.status == status
    assert reason in answer.error


def test_a_chunked_body_is_told_that_a_length_is_needed(ours: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = exchange(ours.url, head + b"5\r\nhello\r\n0\r\n\r\n")
    assert answer.status == 411
    assert "Content-Length header is required" in answer.error


LINES = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    (b"GARBAGE\r\n\r\n", 400),
    (b"GET / HTTP/9.9\r\n\r\n", 400),
    (b"GET / HTTP/x\r\n\r\n", 400),
    (b"BREW /coffee HTTP/1.1\r\n\r\n", 405),
    (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
    (b"POST /nothing HTTP/1.1\r\nContent-Length: 9\r\n\r\n123456789", 404),
    (b"GET /health HTTP/1.1\r\nno colon at all\r\n\r\n", 200),
    (b"GET /v1/models HTTP/1.1\r\n\r\n", 200),
]


@pytest.mark.parametrize(("sent", "status"), LINES, ids=lambda value: repr(value)[:40])
def test_a_request_line_of_any_kind_is_answered(sent: bytes, status: int, ours: Server) -> None:
    assert exchange(ours.url, sent).status == status


def test_http_09_and_a_client_that_says_nothing_are_closed(ours: Server) -> None:
    assert exchange(ours.url, b"GET /health\r\n\r\n").status == 0
    assert exchange(ours.url, b"\r\n\r\n").status in (0, 400)


def test_the_first_of_pipelined_requests_is_answered_whole(ours: Server) -> None:
    answer = exchange(ours.url, completion(prompt="one") * 3)
    assert answer.status == 200
    assert json.loads(answer.content)["usage"]["completion_tokens"] == 2


def test_no_mistake_of_a_client_is_a_traceback_in_the_log(ours: Server) -> None:
    """The server is shared: whatever the tests before this one sent is in its log."""
    assert exchange(ours.url, request(b"\xff")).status == 400
    assert "Traceback" not in ours.text()
