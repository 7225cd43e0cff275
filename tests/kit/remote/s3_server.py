"""A real S3 server on loopback, with a bucket: moto's, in a process of its own."""

import contextlib
import http.client
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import NotYet, ServerProcess, eventually, free_port

INSTALL = "pip install 'moto[server]'"
LOCAL = "127.0.0.1"
KEY, SECRET = "AKIDOFTESTS", "secret-of-tests"


class S3Server:
    """A server of objects that keeps them in memory. It lets in whoever comes."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", LOCAL, "-p", str(self.port)]
        self.process = ServerProcess(command, directory / "log")
        self._buckets = 0

    def start(self) -> None:
        """Start it on its port, and return once it answers. It has no bucket."""
        self.process.begin()
        eventually(self._answers, "starting an S3 server")

    def url(self, bucket: str, prefix: str = "", *, port: int | None = None) -> str:
        """Return where a bucket is; `port` is that of a proxy."""
        at = f"http://{LOCAL}:{port or self.port}"
        below = f"/{prefix}" if prefix else ""
        return f"s3://{KEY}:{SECRET}@{bucket}{below}?endpoint={at}&region=us-east-1"

    def bucket(self) -> str:
        """Make a new bucket, and return its name."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        assert self.ask("PUT", f"/{name}") == 200
        return name

    def ask(self, method: str, path: str) -> int:
        """Return the status of a request of the test's own."""
        connection = http.client.HTTPConnection(LOCAL, self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path)
            return connection.getresponse().status

    def _answers(self) -> None:
        self.process.check()
        try:
            self.ask("GET", "/moto-api/")
        except OSError as error:
            raise NotYet(str(error)) from None


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server, which takes seconds to start: one for a module."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip(f"needs an S3 server: {INSTALL}")
    with tempfile.TemporaryDirectory() as name:
        server = S3Server(Path(name))
        try:
            server.start()
            yield server
        finally:
            server.process.kill()
