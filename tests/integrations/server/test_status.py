"""`serve` at its own port: metrics and status when asked for, also while a model computes."""

import http.client
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kit.tinylm import LmServer

from .conftest import Start, ask, cli

TOKEN = "a-token-that-nobody-shows"


def _get(
    server: LmServer,
    path: str,
    method: str = "GET",
    host: str | None = None,
    body: str | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], str]:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(host or where.hostname or "", where.port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return response.status, named, response.read().decode()
    finally:
        connection.close()


def test_nothing_of_it_is_there_unless_it_was_asked_for(start: Start) -> None:
    server = start("dense")
    for path in ("/metrics", "/status", "/status/overview.json"):
        assert _get(server, path)[0] == 404


def test_the_servers_own_port_has_metrics_and_status(start: Start, models: dict[str, Path]) -> None:
    server = start("dense", "--status")
    said = [{"role": "user", "content": "Tell me a long story about a dragon. " * 40}]
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, server, models["dense"], said) for _ in range(4)]
        # While the model computes.
        while not all(answer.done() for answer in answers):
            assert _get(server, "/metrics")[0] == 200
        for answer in answers:
            answer.result()
    assert f"status page: {server.url}/status" in server.text()
    status, headers, text = _get(server, "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "access-control-allow-origin" not in headers
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    queries = [v for name, v in samples.items() if name.startswith("omlx_cache_query_tokens_total")]
    assert float(queries[0]) > 0
    assert _get(server, "/metrics", "HEAD")[2] == ""
    overview = json.loads(_get(server, "/status/overview.json")[2])
    assert overview["processes"][0]["name"] == "serve"
    rows = json.loads(_get(server, "/status/requests.json")[2])
    # In a batch a first token comes later than the end of its prompt: what the client waited for.
    assert {str(row["number"]): f"{row['first_token_seconds']:.3f}" for row in rows} == dict(
        re.findall(r"request (\d+): .*, first token ([\d.]+) s", server.text())
    )
    assert _get(server, "/metrics", Host="evil.example")[0] == 403
    assert _get(server, "/metrics", Origin="http://evil.example")[0] == 403


def test_a_stream_of_events_does_not_keep_a_server_from_ending(start: Start) -> None:
    server = start("dense", "--status")
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as client:
        client.sendall(b"GET /status/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"text/event-stream" in client.recv(4096)
        assert server.stop() == 0


def test_other_machines_need_the_token(start: Start) -> None:
    address = _own_address()
    server = start("dense", "--host", "0.0.0.0", "--status")
    assert _get(server, "/metrics", host="127.0.0.1")[0] == 200
    status, _, text = _get(server, "/metrics", host=address)
    assert status == 403
    assert "OMLX_CACHE_STATUS_TOKEN" in text


def test_a_token_is_asked_for_and_shown_nowhere(start: Start) -> None:
    server = start("dense", "--status", OMLX_CACHE_STATUS_TOKEN=TOKEN)
    assert _get(server, "/metrics")[0] == 401
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert _get(server, "/metrics", **right)[0] == 200
    shown = server.text() + _get(server, "/status/settings.json", **right)[2]
    for command in (["config"], ["config", "--format", "json"], ["ps", "--format", "json"]):
        shown += cli(server.log.parent, *command)
    assert "status_token" in shown
    assert TOKEN not in shown


def _own_address() -> str:
    """Return an address of this machine that is not loopback; skips without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: it asks for the way.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@pytest.mark.nightly
def test_a_router_without_a_tokeniser_asks_with_the_request_itself(
    start: Start, models: dict[str, Path]
) -> None:
    server = start("dense", "--status")
    said = [{"role": "user", "content": "Tell me a long story about a dragon. " * 40}]
    none = _look_up(server, {"messages": said})
    assert (none[0], none[1]["cached_tokens"]) == (200, 0)
    turn = ask(server, models["dense"], said)
    more = [*said, {"role": "assistant", "content": turn.text}, {"role": "user", "content": "On!"}]
    status, told = _look_up(server, {"messages": more, "stream": True})
    assert status == 200
    assert told["cached_tokens"] >= turn.prompt_tokens // 64 * 64
    assert told["hot_tokens"] + told["cold_tokens"] == told["cached_tokens"]
    # Its keys are good for a look-up without the text.
    query = f"namespace={told['namespace']}&keys={','.join(told['keys'])}"
    by_keys = json.loads(_get(server, f"/lookup?{query}")[2])
    assert 0 <= told["cached_tokens"] - by_keys["cached_tokens"] < 64 + 64
    # What it said is what the next request then gets, and the answer's end, if that came since.
    assert 0 <= ask(server, models["dense"], more).cached_tokens - told["cached_tokens"] < 64
    assert _look_up(server, {"messages": []})[0] == 400
    assert _look_up(server, {"messages": said, "model": "another"})[1]["cached_tokens"] == 0
    assert _look_up(server, {"messages": said}, Origin="http://evil.example")[0] == 403


def test_look_ups_need_the_token_and_the_status_to_be_asked_for(
    start: Start, models: dict[str, Path]
) -> None:
    said = {"messages": [{"role": "user", "content": "Hello"}]}
    assert _look_up(start("dense"), said)[0] == 404
    server = start("dense", "--status", OMLX_CACHE_STATUS_TOKEN=TOKEN)
    assert _look_up(server, said)[0] == 401
    assert _look_up(server, said, Authorization=f"Bearer {TOKEN}")[0] == 200


def _look_up(server: LmServer, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
    status, _, text = _get(server, "/lookup", "POST", body=json.dumps(body), **headers)
    return status, json.loads(text) if status == 200 else {}
