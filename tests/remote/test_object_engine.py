"""The engine of object stores when its server fails: what is raised, and when."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kit.remote.engines import engine_at, reason_of, write
from kit.remote.proxy import Proxy, Way, proxy_to
from kit.remote.s3_server import LOCAL, SECRET, S3Server, s3_server
from omlx_cache_storage.remote.engine import Part

IMPATIENT = {"lookup_seconds": 0.3, "read_seconds": 0.6}
WAITS_TO_BEGIN = {"lookup_seconds": 30.0, "read_seconds": 0.6}
LARGE = 4 << 20
WHOLE = Part("v", 0, 0, LARGE)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def proxy(server: S3Server) -> Iterator[Proxy]:
    with proxy_to(server.port) as proxy:
        yield proxy


@pytest.fixture
def url(server: S3Server, proxy: Proxy) -> str:
    """Where a large value is, behind the proxy."""
    bucket = server.bucket()
    with engine_at(server.url(bucket)) as engine:
        write(engine, "v", bytes(LARGE))
    return server.url(bucket, port=proxy.port)


@contextlib.contextmanager
def answering(status: int) -> Iterator[str]:
    """The URL of a bucket on a server that has one answer."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = b"<Error><Code>SoItIs</Code></Error>"
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer((LOCAL, 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"s3://KEY:{SECRET}@bucket?endpoint=http://{LOCAL}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "auth"),
        (403, "auth"),
        (429, "throttled"),
        (503, "throttled"),
        (504, "timeout"),
        (500, "error"),
        (507, "full"),
    ],
)
def test_a_status_has_its_word(status: int, reason: str) -> None:
    with answering(status) as url, engine_at(url) as engine:
        for error in (
            reason_of(engine.ping),
            reason_of(engine.look, ["a", "b"], 4),
            reason_of(engine.read, [WHOLE]),
            reason_of(write, engine, "a", b"value"),
        ):
            assert error.reason == reason
            assert "SoItIs" in str(error)
            assert SECRET not in str(error)


def test_a_bucket_that_is_not_there_is_no_empty_one(server: S3Server) -> None:
    with engine_at(server.url("no-such-bucket")) as engine:
        for error in (
            reason_of(engine.ping),
            reason_of(engine.look, ["a"], 4),
            reason_of(write, engine, "a", b"value"),
        ):
            assert error.reason == "error"
            assert "NoSuchBucket" in str(error)


def test_nobody_listens(url: str, proxy: Proxy) -> None:
    with engine_at(url) as engine:
        engine.ping()
        proxy.refuse()
        proxy.reset()
        assert reason_of(engine.look, ["v"], 4).reason == "refused"
        proxy.accept()
        assert engine.look(["v"], 4) == ([bytes(4)], [])


def test_a_server_that_says_nothing_costs_one_time_out_however_much_is_asked(
    url: str, proxy: Proxy
) -> None:
    with engine_at(url, **IMPATIENT) as engine:
        engine.ping()
        proxy.rules(down=Way(stalls=True))
        began = time.monotonic()
        assert reason_of(engine.look, [f"v{n}" for n in range(500)], 4).reason == "timeout"
        assert reason_of(engine.read, [WHOLE] * 100).reason == "timeout"
        # One after the other they would take over six seconds.
        assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (Way(cut_after=0), "lost"),
        (Way(cut_after=100_000), "lost"),
        (Way(cut_after=100_000, resets=True), "lost"),
        (Way(trickle=0.1), "timeout"),
    ],
)
def test_an_answer_that_breaks_off_is_no_value(
    url: str, proxy: Proxy, way: Way, reason: str
) -> None:
    with engine_at(url, **WAITS_TO_BEGIN) as engine:
        engine.ping()
        proxy.rules(down=way)
        assert reason_of(engine.read, [WHOLE]).reason == reason
        proxy.free()
        assert [len(found or b"") for found in engine.read([WHOLE])] == [LARGE]


def test_an_answer_that_comes_slowly_is_waited_for_while_it_comes(url: str, proxy: Proxy) -> None:
    with engine_at(url, **WAITS_TO_BEGIN) as engine:
        engine.ping()
        proxy.rules(down=Way(rate=LARGE / 2))
        (found,) = engine.read([WHOLE])
        assert len(found or b"") == LARGE


def test_a_write_that_breaks_off_leaves_nothing(url: str, proxy: Proxy) -> None:
    with engine_at(url) as engine:
        proxy.rules(up=Way(cut_after=100_000))
        assert reason_of(write, engine, "half", bytes(LARGE)).reason == "lost"
        proxy.free()
        assert engine.look(["half"], 4) == ([None], [])


def test_a_write_may_take_longer_than_a_read(url: str, proxy: Proxy) -> None:
    with engine_at(url, **WAITS_TO_BEGIN) as engine:
        proxy.rules(up=Way(rate=4e6))
        assert write(engine, "slow", bytes(LARGE))


def test_a_server_that_is_killed_and_comes_back_is_used_again() -> None:
    with s3_server() as server:
        with engine_at(server.url(server.bucket())) as engine:
            engine.ping()
            server.process.kill()
            assert reason_of(engine.look, ["v"], 4).reason in ("refused", "lost")
            server.start()
            server.bucket()
            assert reason_of(engine.ping).reason == "error"
        with engine_at(server.url(server.bucket())) as engine:
            engine.ping()


def test_a_directory_that_is_not_mounted_is_not_made_and_used_once_it_is(tmp_path: Path) -> None:
    mount, share = tmp_path / "mount", tmp_path / "mount" / "share"
    with engine_at(share.as_uri()) as engine:
        error = reason_of(engine.ping)
        assert (error.reason, "make or mount it" in str(error)) == ("refused", True)
        assert reason_of(write, engine, "v", b"value").reason == "refused"
        assert engine.read([]) == []
        assert reason_of(engine.read, [Part("v", 0, 0, 5)]).reason == "refused"
        assert not mount.exists()
        mount.mkdir()
        assert write(engine, "v", b"value")
        assert [bytes(one or b"") for one in engine.read([Part("v", 0, 0, 5)])] == [b"value"]


def test_a_value_in_a_directory_is_a_file_and_nothing_else_is_left(tmp_path: Path) -> None:
    with engine_at(f"file://{tmp_path}") as engine:
        write(engine, "a/b/v", b"value")
        write(engine, "a/b/v", b"other")
        write(engine, "a/b/v", b"third", replace=True)
        assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()] == [
            "a/b/v"
        ]
        assert (tmp_path / "a/b/v").read_bytes() == b"third"


def test_what_is_no_file_in_a_directory_is_no_value(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"value")
    names = ["pipe", "directory", "file", "file/below", "none"]
    with engine_at(tmp_path.as_uri()) as engine:
        found = engine.read([Part(name, 0, 1, 3) for name in names])
    assert [one and bytes(one) for one in found] == [None, None, b"alu", None, None]
