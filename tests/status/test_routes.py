"""The status paths: what each answers, and whom."""

import json
import math
from collections.abc import Sequence

import pytest

from kit.status import Known, operations, process, statistics
from omlx_cache.status.answer import Answer
from omlx_cache.status.history import ProcessStatus
from omlx_cache.status.routes import ROUTES, Routes, is_status_path
from omlx_cache_storage.stats import HotUsage

HERE = {"Host": "127.0.0.1:9000"}
TOKEN = "a-secret-of-this-test"


def answer(
    source: Known,
    method: str,
    path: str,
    headers: dict[str, str],
    token: str | None = None,
    peer: str = "127.0.0.1",
) -> Answer:
    return Routes(operations(source), token).answer(method, path, headers, peer)


def ask(path: str, method: str = "GET", source: Known | None = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return answer(source or Known(), method, path, {**HERE, **named})


def test_each_path_answers_with_its_own_kind() -> None:
    kinds = {
        "/metrics": "text/plain; version=0.0.4; charset=utf-8",
        "/status": "text/html; charset=utf-8",
        "/status/": "text/html; charset=utf-8",
        "/status/overview.json": "application/json",
        "/status/settings.json": "application/json",
        "/status/requests.json?limit=5": "application/json",
        "/status/prefixes.json?namespace=ab&parent=cd&limit=7&text=1": "application/json",
        "/status/events.json?after=0&limit=2": "application/json",
    }
    for path, kind in kinds.items():
        found = ask(path)
        assert (found.status, found.content_type) == (200, kind), (path, found.body)
        assert is_status_path(path)


def test_questions_reach_the_source_as_they_were_asked() -> None:
    source = Known()
    ask("/status/requests.json?limit=5", source=source)
    ask("/status/prefixes.json?namespace=ab&parent=cd&limit=7&text=1", source=source)
    ask("/status/prefixes.json", source=source)
    ask("/status/events.json?after=3&limit=2", source=source)
    assert source.asked == [
        ("requests", 5),
        ("prefixes", "ab", "cd", 7, True),
        ("prefixes", None, None, 100, False),
        ("events", 3, 2),
    ]


def test_no_answer_is_kept_framed_or_given_to_another_origin() -> None:
    for path in ("/metrics", "/status", "/status/overview.json", "/nothing"):
        headers = {name.lower(): value for name, value in ask(path).all_headers().items()}
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe-inline" not in headers["content-security-policy"]
        assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/status/requests.json?limit=many", "got 'many'"),
        ("/status/requests.json?limit=0", "1 or more"),
        ("/status/requests.json?limit=1&limit=2", "came twice"),
        ("/status/events.json?after=-1", "0 or more"),
        ("/status/events.json?after=%c2%b2", "0 or more"),
        ("/status/prefixes.json?text=yes", "0 or 1"),
        ("/status/events.json?kv=yes", "0 or 1"),
        ("/status/overview.json?limit=3", "it takes none"),
        ("/status/requests.json?token=abc", "Authorization: Bearer"),
    ],
)
def test_a_bad_query_is_told_what_was_expected(path: str, expected: str) -> None:
    found = ask(path)
    assert found.status == 400
    assert expected in found.body.decode()


def test_what_is_not_there_and_what_cannot_be_done_say_what_can() -> None:
    nothing = ask("/status/nothing")
    assert nothing.status == 404
    assert b"/status/overview.json" in nothing.body
    found = ask("/metrics", "POST")
    assert (found.status, found.headers["Allow"]) == (405, "GET, HEAD")
    found = answer(Known(), "GET", "/", HERE, token=TOKEN)
    assert (found.status, found.headers["Location"]) == (302, "/status")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:80", "[::1]:9000", "LOCALHOST", "192.168.1.7:8080", "::1"]
)
def test_addresses_and_this_machines_names_are_answered(host: str) -> None:
    assert answer(Known(), "GET", "/metrics", {"Host": host}).status == 200 or host == "::1"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io", "127.0.0.1%evil.example"],
)
def test_a_name_that_may_be_rebound_to_this_machine_is_refused(host: str) -> None:
    for path in ("/metrics", "/status", "/status/overview.json"):
        found = answer(Known(), "GET", path, {"Host": host})
        assert found.status == 403
        assert b"Host" in found.body


def test_another_pages_requests_are_refused_but_links_lead_to_the_page() -> None:
    assert ask("/metrics", Sec_Fetch_Site="cross-site").status == 403
    assert ask("/metrics", Sec_Fetch_Site="same-site").status == 403
    assert ask("/metrics", Origin="http://evil.example").status == 403
    assert ask("/metrics", Origin="null").status == 403
    assert ask("/metrics", Origin="http://127.0.0.1:3000").status == 403
    assert (
        ask("/metrics", Origin="http://127.0.0.1:9000", Sec_Fetch_Site="same-origin").status == 200
    )
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert ask("/status", **link).status == 200
    assert ask("/status/overview.json", **link).status == 403


def test_with_a_token_only_the_page_itself_is_shown_without_it() -> None:
    def shown(path: str, **headers: str) -> Answer:
        return answer(Known(), "GET", path, {**HERE, **headers}, token=TOKEN)

    assert shown("/status").status == 200
    for path in ("/metrics", "/status/overview.json", "/status/events", "/status/nothing"):
        assert shown(path).status == 401
        assert "Bearer" in shown(path).headers["WWW-Authenticate"]
        for wrong in ("Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN):
            refused = shown(path, Authorization=wrong)
            assert refused.status == 401
            assert TOKEN.encode() not in refused.body
    assert shown("/metrics", Authorization=f"Bearer {TOKEN}").status == 200
    assert shown("/metrics", authorization=f"bearer  {TOKEN} ").status == 200


def test_another_machine_needs_a_token_and_may_use_any_name_with_it() -> None:
    assert answer(Known(), "GET", "/metrics", HERE, peer="192.168.1.9").status == 403
    assert answer(Known(), "GET", "/status", HERE, peer="192.168.1.9").status == 403
    assert answer(Known(), "GET", "/metrics", HERE, peer="::ffff:127.0.0.1").status == 200
    headers = {"Host": "studio.lan:8080", "Authorization": f"Bearer {TOKEN}"}
    found = answer(Known(), "GET", "/metrics", headers, peer="192.168.1.9", token=TOKEN)
    assert found.status == 200


def test_a_source_that_fails_is_an_answer_and_no_exception() -> None:
    class Broken(Known):
        def processes(self) -> Sequence[ProcessStatus]:
            raise ReferenceError("the store is gone")

    for path in ("/metrics", "/status/overview.json"):
        found = ask(path, source=Broken())
        assert found.status == 500
        assert b"the store is gone" in found.body


def test_documents_are_json_for_every_reader() -> None:
    hot = HotUsage(0, 0, 0, 0, 0, 0, patience_seconds=math.inf)
    odd = process(name="a\ud800\n\0b", uptime_s=math.nan, stats=statistics(hot=hot))
    found = ask("/status/overview.json", source=Known(odd))
    document = json.loads(found.body, parse_constant=lambda name: pytest.fail(name))
    assert document["processes"][0]["uptime_s"] is None
    assert document["processes"][0]["stats"]["hot"]["patience_seconds"] is None


def test_what_commands_ask_is_for_this_user_alone() -> None:
    own = [path for path, route in ROUTES.items() if route.is_own]
    assert {"/store/ping", "/store/clear", "/store/why"} <= set(own)
    asked: list[object] = []
    routes = Routes({path.rpartition("/")[2]: asked.append for path in own}, TOKEN)
    headers = {**HERE, "Authorization": f"Bearer {TOKEN}"}
    for path in own:
        assert not is_status_path(path)
        for method in ("GET", "POST"):
            found = routes.answer(method, path, headers, "127.0.0.1", b"{}")
            assert found.status == 404
            assert b"/store" not in found.body.partition(b"there is /metrics")[2]
    assert asked == []
    assert routes.answer("GET", "/store/ls?namespace=ab&limit=7", {}, None).status == 200
    assert routes.answer("POST", "/store/flush", {}, None, b'{"timeout": 1.5}').status == 200
    assert routes.answer("GET", "/store/events?kinds=a,b&kv=1", {}, None).status == 200
    assert asked == [
        {"namespace": "ab", "limit": 7},
        {"timeout": 1.5},
        {"kinds": ["a", "b"], "kv": True},
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/store/flush", b"", 405),
        ("PUT", "/store/ls", b"{}", 405),
        ("POST", "/store/flush", b"{", 400),
        ("POST", "/store/flush", b"[1]", 400),
        ("POST", "/store/flush", b"[" * 60_000, 400),
        ("POST", "/store/flush", b'{"unknown": 1}', 400),
        ("POST", "/store/flush?timeout=1", b'{"timeout": 1}', 400),
        ("POST", "/store/flush", b"\xff\xfe", 400),
        ("GET", "/store/ping", b"", 404),
    ],
)
def test_a_bad_request_of_this_user_is_refused(
    method: str, path: str, body: bytes, status: int
) -> None:
    routes = Routes({"flush": lambda args: {}, "ls": lambda args: []})
    assert routes.answer(method, path, {}, None, body).status == status
