"""The engine of object stores when its server fails: what is raised, and when."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from kit.remote.engines import engine_at, reason_of, write
from kit.remote.processes import until
from kit.remote.proxy import Proxy, Way, proxy_to
from kit.remote.s3_server import LOCAL, SECRET, S3Server, s3_server
from omlx_cache_storage.remote.engine import Part, RemoteEngine, RemoteError

IMPATIENT = {"lookup_seconds": 3.0, "read_seconds": 3.0}
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


class Bucket(ThreadingHTTPServer):
    """A bucket with the next of `answers` to whatever is asked; the last one stays."""

    daemon_threads = False

    def __init__(self, *answers: "BucketSays") -> None:
        self.answers = [*answers]
        super().__init__((LOCAL, 0), _BucketHandler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        at = f"http://{LOCAL}:{self.server_port}"
        return f"s3://KEY:{SECRET}@bucket?endpoint={at}&region=us-east-1"

    def server_close(self) -> None:
        self.shutdown()
        self._thread.join()
        super().server_close()


class BucketSays(NamedTuple):
    """What a bucket says; `length` is what it says of the body, None for one without end."""

    status: int
    body: bytes
    length: int | None
    stretch: str = "bytes 0-63/64"


class _BucketHandler(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        answers = self.server.answers
        status, body, length, stretch = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.send_header("Content-Range", stretch)
        self.send_header("Connection", "close")
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 05:00:00 GMT")
        endless = length is None
        self.send_header(
            *("Transfer-Encoding", "chunked") if endless else ("Content-Length", length)
        )
        self.end_headers()
        self.close_connection = True
        with suppress(OSError):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body) if endless else body)
            while endless:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))

    do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


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
    body = b"<Error><Code>SoItIs</Code></Error>"
    with Bucket(BucketSays(status, body, len(body))) as bucket, engine_at(bucket.url) as engine:
        for error in (
            reason_of(engine.ping),
            reason_of(engine.look, ["a", "b"], 4),
            reason_of(engine.read, [WHOLE]),
            reason_of(write, engine, "a", b"value"),
        ):
            assert error.reason == reason
            assert "SoItIs" in str(error)
            assert SECRET not in str(error)


@pytest.mark.parametrize(
    "lie",
    [
        BucketSays(206, b"x" * 20, 64),
        BucketSays(206, b"x" * 64, 64, "bytes 7-99999999999999/99999999999999"),
        BucketSays(206, b"x" * 64, 64, "bytes 63-0/64"),
        BucketSays(206, b"x" * 64, 64, "nonsense"),
        BucketSays(200, b"x" * 64, 64),
        BucketSays(206, b"x" * 100_000, None),
        BucketSays(206, b"x" * 5000, 5000),
    ],
    ids=["short", "far", "backwards", "nonsense", "whole", "endless", "long"],
)
def test_a_bucket_that_lies_about_what_it_sends_gives_no_more_than_was_asked_for(
    lie: BucketSays,
) -> None:
    part = Part("name", 0, 0, 64)
    with (
        Bucket(lie, BucketSays(206, b"y" * 64, 64)) as bucket,
        engine_at(bucket.url, read_seconds=2.0) as engine,
    ):
        with suppress(RemoteError):
            (found,) = engine.read([part])
            assert found is None or memoryview(found).nbytes <= 64
        assert [bytes(one or b"") for one in engine.read([part])] == [b"y" * 64]


def test_a_server_that_says_nothing_costs_one_time_out_however_much_is_asked(
    url: str, proxy: Proxy
) -> None:
    with engine_at(url, **IMPATIENT) as engine:
        engine.ping()
        proxy.rules(down=Way(stalls=True))
        began = time.monotonic()
        assert reason_of(engine.look, [f"v{n}" for n in range(500)], 4).reason == "timeout"
        assert reason_of(engine.read, [WHOLE] * 100).reason == "timeout"
        # One after the other they would take half an hour.
        assert time.monotonic() - began < 120


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
        # What was already sent on a connection of the client's pool may still fail with it.
        until(lambda: _came(engine))


def _came(engine: RemoteEngine) -> bool:
    with suppress(RemoteError):
        return [len(found or b"") for found in engine.read([WHOLE])] == [LARGE]
    return False


def test_a_write_that_breaks_off_leaves_nothing(url: str, proxy: Proxy) -> None:
    with engine_at(url) as engine:
        proxy.rules(up=Way(cut_after=100_000))
        assert reason_of(write, engine, "half", bytes(LARGE)).reason == "lost"
        proxy.free()
        assert engine.look(["half"], 4) == ([None], [])


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
