import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from omlx_cache.control.listener import listen_at, listen_in, remove_stale
from omlx_cache.control.server import ApiServer, serve_socket
from omlx_cache.status.routes import Routes

_SERVE = """
import sys
from pathlib import Path
from omlx_cache.control.listener import listen_in
from omlx_cache.control.server import ApiServer
from omlx_cache.status.routes import Routes
server = ApiServer(listen_in(Path(sys.argv[1])), Routes({}))
print(server.path, flush=True)
sys.stdin.read()
if sys.argv[2:] == ["close"]:
    server.close()
"""


def _start(runtime_dir: Path, *arguments: str) -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(runtime_dir), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def _end(process: "subprocess.Popen[str]") -> int:
    process.communicate(timeout=30)
    return process.returncode


def test_the_socket_of_a_killed_process_is_removed_at_the_next_start(runtime_dir: Path) -> None:
    process, path = _start(runtime_dir)
    assert remove_stale(runtime_dir) == []
    process.send_signal(signal.SIGKILL)
    _end(process)
    assert path.exists()
    with ApiServer(listen_in(runtime_dir), Routes({})) as server:
        assert not path.exists()
        assert server.path is not None
        assert server.path.name == f"{os.getpid()}-0.sock"


@pytest.mark.parametrize("arguments", [(), ("close",)])
def test_a_process_that_ends_takes_its_socket_with_it(
    runtime_dir: Path, arguments: tuple[str, ...]
) -> None:
    process, path = _start(runtime_dir, *arguments)
    assert path.exists()
    assert _end(process) == 0
    assert not path.exists()


def test_a_killed_process_s_socket_at_a_chosen_path_is_replaced(runtime_dir: Path) -> None:
    process, path = _start(runtime_dir)
    process.send_signal(signal.SIGKILL)
    _end(process)
    with ApiServer(listen_at(path), Routes({})):
        assert path.exists()


def test_the_setting_decides_where_a_store_listens(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_RUNTIME_DIR", str(runtime_dir / "run"))
    assert serve_socket("off", {}) is None
    assert not (runtime_dir / "run").exists()
    automatic, chosen = serve_socket("auto", {}), serve_socket(runtime_dir / "x.sock", {})
    assert automatic is not None
    assert chosen is not None
    with automatic, chosen:
        assert automatic.path == runtime_dir / "run" / f"{os.getpid()}-0.sock"
        assert chosen.path == runtime_dir / "x.sock"
