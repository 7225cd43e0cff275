import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.control import ControlError, ControlServer, Timeouts
from omlx_cache.control.frames import REPLY_LIMIT

Connect = Callable[[ControlServer], Any]


def _echo(args: Mapping[str, object]) -> object:
    return dict(args)


def _fail(args: Mapping[str, object]) -> object:
    raise ValueError("broken handler")


def _exit(args: Mapping[str, object]) -> object:
    raise SystemExit(3)


def _refuse(args: Mapping[str, object]) -> object:
    raise ControlError("not_found", "no such page")


HANDLERS = {
    "echo": _echo,
    "fail": _fail,
    "exit": _exit,
    "refuse": _refuse,
    "object": lambda args: object(),
    "huge": lambda args: b"x" * (REPLY_LIMIT + 1),
    "large": lambda args: b"x" * (16 * 2**20),
}


def test_a_request_is_answered(runtime_dir: Path, connect: Connect) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        client = connect(server)
        for n in range(3):
            assert client.ask("echo", n=n) == {"ok": True, "result": {"n": n}}


def test_large_replies_arrive_whole(runtime_dir: Path, connect: Connect) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        assert connect(server).ask("large")["result"] == b"x" * (16 * 2**20)


@pytest.mark.parametrize(
    ("op", "code", "message"),
    [
        ("fail", "failed", "ValueError: broken handler"),
        ("exit", "failed", "SystemExit: 3"),
        ("refuse", "not_found", "no such page"),
        ("object", "failed", "msgpack"),
        ("huge", "too_large", str(REPLY_LIMIT)),
        ("nothing", "unknown_op", "'nothing'"),
    ],
)
def test_a_failing_handler_is_an_error_reply_and_the_connection_lives(
    runtime_dir: Path, connect: Connect, op: str, code: str, message: str
) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        client = connect(server)
        reply = client.ask(op)
        assert reply["ok"] is False
        assert reply["error"]["code"] == code
        assert message in reply["error"]["message"]
        assert client.ask("echo")["ok"] is True


def test_requests_sent_at_once_are_answered_in_order(runtime_dir: Path, connect: Connect) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        client = connect(server)
        for n in range(50):
            client.send({"v": 1, "op": "echo", "args": {"n": n}})
        assert [client.receive()["result"] for _ in range(50)] == [{"n": n} for n in range(50)]


def test_many_clients_are_served_at_the_same_time(runtime_dir: Path, connect: Connect) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        clients = [connect(server) for _ in range(20)]
        for n, client in enumerate(clients):
            client.send({"v": 1, "op": "echo", "args": {"n": n}})
        assert [client.receive()["result"]["n"] for client in reversed(clients)] == [
            *reversed(range(20))
        ]


def test_the_socket_is_private_and_goes_with_the_server(runtime_dir: Path) -> None:
    path = runtime_dir / "a.sock"
    with ControlServer(path, HANDLERS):
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert not path.exists()


def test_closing_twice_does_nothing(runtime_dir: Path) -> None:
    server = ControlServer(runtime_dir / "a.sock", HANDLERS)
    server.close()
    server.close()


def test_a_handler_may_close_the_server(runtime_dir: Path, connect: Connect) -> None:
    servers: list[ControlServer] = []
    closed = threading.Event()

    def stop(args: object) -> None:
        servers[0].close()
        closed.set()

    server = ControlServer(runtime_dir / "a.sock", {"stop": stop})
    servers.append(server)
    client = connect(server)
    client.send({"v": 1, "op": "stop", "args": {}})
    assert client.at_end()
    assert closed.wait(10)
    thread = next((t for t in threading.enumerate() if t.name == "omlx-cache-control"), None)
    if thread is not None:
        thread.join(10)


def test_another_s_file_at_the_path_is_not_deleted_at_close(runtime_dir: Path) -> None:
    path = runtime_dir / "a.sock"
    server = ControlServer(path, HANDLERS)
    path.unlink()
    path.write_text("somebody else's")
    server.close()
    assert path.read_text() == "somebody else's"


def test_a_path_in_use_is_refused_and_the_first_server_keeps_it(
    runtime_dir: Path, connect: Connect
) -> None:
    path = runtime_dir / "a.sock"
    with ControlServer(path, HANDLERS) as first:
        with pytest.raises(ControlError, match="another store listens"):
            ControlServer(path, HANDLERS)
        assert connect(first).ask("echo")["ok"] is True


def test_an_ordinary_file_at_the_path_is_refused_and_kept(runtime_dir: Path) -> None:
    path = runtime_dir / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(ControlError, match=r"notes\.txt"):
        ControlServer(path, HANDLERS)
    assert path.read_text() == "keep me"


def test_a_path_too_long_for_a_socket_is_refused_with_the_limit(runtime_dir: Path) -> None:
    with pytest.raises(ControlError, match="at most 103 bytes"):
        ControlServer(runtime_dir / ("x" * 100), HANDLERS)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_neither_serves_nor_removes_the_socket(
    runtime_dir: Path, connect: Connect
) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        client = connect(server)
        assert client.ask("echo")["ok"] is True
        child = os.fork()
        if child == 0:
            # Whatever happens here, the child must not run pytest's own clean-up.
            try:
                server.close()
                open_sockets = [s for s in (server._listener.socket,) if s.fileno() >= 0]
                os._exit(len(open_sockets))
            finally:
                os._exit(77)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert server.path.exists()
        assert client.ask("echo")["ok"] is True
        assert connect(server).ask("echo")["ok"] is True


def test_an_idle_client_is_let_go(runtime_dir: Path, connect: Connect) -> None:
    timeouts = Timeouts(idle=0.05)
    with ControlServer(runtime_dir / "a.sock", HANDLERS, timeouts=timeouts) as server:
        assert connect(server).at_end()
