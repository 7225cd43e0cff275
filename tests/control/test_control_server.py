"""The server on a Unix socket, asked by the command line's client."""

import errno
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.control.errors import ControlError
from omlx_cache.control.listener import bind
from omlx_cache.control.server import ApiServer, serve_socket
from omlx_cache.control.socket_paths import is_listening
from omlx_cache_daemon import client
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import NobodyThere

from .conftest import Connect


def _fail(args: Mapping[str, object]) -> object:
    raise ValueError("broken handler")


def _refuse(args: Mapping[str, object]) -> object:
    raise ControlError("not_found", "no such page")


OPERATIONS = {
    "ping": dict,
    "ls": dict,
    "prune": dict,
    "stats": _fail,
    "inspect": _refuse,
    "config": lambda args: object(),
    "recent": lambda args: ["x" * 2**20] * 16,
}


def open_server(path: Path, operations: Any = OPERATIONS, **options: Any) -> ApiServer:
    server = serve_socket(path, operations, **options)
    assert server is not None
    return server


def ask(server: ApiServer, op: str, **args: object) -> object:
    assert server.path is not None
    return Client(server.path, timeout=20).call(op, **args)


@pytest.fixture
def server(runtime_dir: Path) -> Iterator[ApiServer]:
    with open_server(runtime_dir / "a.sock") as opened:
        yield opened


def test_arguments_arrive_as_they_were_and_answers_whole(server: ApiServer) -> None:
    asked = {"namespace": "a&b=\u00fc %", "limit": 7}
    assert ask(server, "ls", **asked) == asked
    posted = {"keep": [{"mlx": "1"}], "to_bytes": 10, "dry_run": False, "timeout": 1.5}
    assert ask(server, "prune", **posted) == posted
    assert ask(server, "recent") == ["x" * 2**20] * 16


@pytest.mark.parametrize(
    ("op", "code", "message"),
    [
        ("stats", "failed", "ValueError: broken handler"),
        ("inspect", "not_found", "no such page"),
        ("config", "failed", "TypeError"),
        ("nothing", "not_found", "'/store/nothing'"),
        ("compare", "not_found", "compare"),
    ],
)
def test_a_failing_operation_is_an_error_with_its_code(
    server: ApiServer, op: str, code: str, message: str
) -> None:
    with pytest.raises(ControlError, match=message) as failed:
        ask(server, op)
    assert failed.value.code == code
    assert ask(server, "ping") == {}


def test_an_answer_larger_than_a_client_takes_is_refused(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 2**20)
    with pytest.raises(ControlError, match="more than 1048576 bytes"):
        ask(server, "recent")


def test_the_socket_is_private_and_goes_with_the_server(runtime_dir: Path) -> None:
    path = runtime_dir / "a.sock"
    with open_server(path) as server:
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        server.close()
        assert not path.exists()
    with pytest.raises(NobodyThere, match="no store listens there"):
        Client(path).call("ping")


def test_an_operation_may_close_the_server(runtime_dir: Path, connect: Connect) -> None:
    servers: list[ApiServer] = []
    closed = threading.Event()

    def stop(args: object) -> None:
        servers[0].close()
        closed.set()

    server = open_server(runtime_dir / "a.sock", {"ping": stop})
    servers.append(server)
    client = connect(server)
    client.get("ping")
    assert client.at_end()
    assert closed.wait(10)


def test_anothers_file_at_the_path_is_not_deleted_at_close(runtime_dir: Path) -> None:
    path = runtime_dir / "a.sock"
    server = open_server(path)
    path.unlink()
    path.write_text("somebody else's")
    server.close()
    assert path.read_text() == "somebody else's"


def test_a_path_that_is_taken_or_too_long_is_refused(server: ApiServer, runtime_dir: Path) -> None:
    assert server.path is not None
    with pytest.raises(ControlError, match="another store listens"):
        open_server(server.path)
    assert ask(server, "ping") == {}
    notes = runtime_dir / "notes.txt"
    notes.write_text("keep me")
    with pytest.raises(ControlError, match=r"notes\.txt"):
        open_server(notes)
    assert notes.read_text() == "keep me"
    with pytest.raises(ControlError, match="at most 103 bytes"):
        open_server(runtime_dir / ("x" * 100))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_neither_serves_nor_removes_the_socket(
    server: ApiServer, connect: Connect
) -> None:
    waiting = connect(server)
    assert ask(server, "ping") == {}
    child = os.fork()
    if child == 0:
        # Whatever happens here, the child must not run pytest's own clean-up.
        try:
            server.close()
            os._exit(int(server.socket.fileno() >= 0))
        finally:
            os._exit(77)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ask(server, "ping") == {}
    waiting.get("ping")
    assert waiting.status() == 200


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full backlog refuses")
def test_a_store_that_many_ask_at_once_is_seen_as_there(runtime_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as other:
        busy.bind(str(runtime_dir / "a.sock"))
        busy.listen(0)
        other.connect(busy.getsockname())
        assert is_listening(runtime_dir / "a.sock")


def test_a_port_that_is_not_given_comes_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(OSError, match=r"port 80: Permission denied; take another$"):
        bind("127.0.0.1", 80, "; take another")
