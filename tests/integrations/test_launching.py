"""Which versions of a server are run, and the one store of the process that serves."""

import json
import pickle
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from kit.examples import some
from omlx_cache.integrations import launching
from omlx_cache.integrations.host_server import HostName, HostServer, UnusableHost
from omlx_cache.integrations.launching import CannotRun, open_store


class LaunchModule:
    """Stands for a server's `launch` module."""

    def __init__(self, package: str = "pytest", *needed: HostName, tested: str = ">=1") -> None:
        self.HOST = HostServer("a-server", package, tested, needed)
        self.did: list[str] = []

    def place(self, open_store: object) -> None:
        self.did.append("place")

    def main(self, arguments: list[str]) -> None:
        self.did.append("main")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[LaunchModule], LaunchModule]:
    """Launches a stand-in, and gives it back."""
    monkeypatch.setenv("OMLX_CACHE_COLD_DIR", str(tmp_path))
    monkeypatch.setattr(launching, "show_logs", lambda settings: None)

    def launch(server: LaunchModule) -> LaunchModule:
        monkeypatch.setattr(launching, "find", lambda name: server)
        assert launching.launch("a-server", []) == 0
        return server

    return launch


def test_a_server_that_is_missing_is_refused_with_the_tested_versions(
    run: Callable[[LaunchModule], LaunchModule],
) -> None:
    with pytest.raises(CannotRun, match=r"pip install .*'no-such-server-at-all>=0.6.0,<0.7'"):
        run(LaunchModule("no-such-server-at-all", tested=">=0.6.0,<0.7"))


@pytest.mark.parametrize("has_pip", [True, False], ids=["pip", "uv"])
def test_a_server_of_another_environment_is_told_how_to_have_both_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_pip: bool
) -> None:
    bin_ = tmp_path / "its env" / "bin"
    pip = bin_.parent / "lib" / "python3.13" / "site-packages" / "pip"
    (pip if has_pip else bin_).mkdir(parents=True)
    bin_.mkdir(exist_ok=True)
    (bin_.parent / "pyvenv.cfg").touch()
    python = bin_ / "python3"
    for path in (python, bin_ / "a-server"):
        path.touch(0o755)
    link = tmp_path / "links"
    link.mkdir()
    (link / "a-server").symlink_to(bin_ / "a-server")
    monkeypatch.setenv("PATH", str(link))
    told = launching.absent("a-server", HostServer("a-server", "a-server", ">=1"))
    command = told.partition("Install both in one: ")[2]
    how = f"'{python}' -m pip install " if has_pip else f"uv pip install --python '{python}' "
    assert command.startswith(how)
    assert command.endswith(f" && '{bin_ / 'omlx-cache'}' run a-server ...")
    assert sys.executable in told.partition("Install both in one: ")[0]


def test_an_untested_version_runs_with_a_warning(
    run: Callable[[LaunchModule], LaunchModule], caplog: pytest.LogCaptureFixture
) -> None:
    assert run(LaunchModule(tested="<1")).did == ["place", "main"]
    assert "was not tested, versions <1 were" in caplog.text


def test_a_server_that_lacks_a_name_runs_without_the_cache_unless_it_is_required(
    run: Callable[[LaunchModule], LaunchModule],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = LaunchModule("pytest", HostName("queue", "Queue.pond"))
    assert run(lacking).did == ["main"]
    assert "has no `queue.Queue.pond`: it runs with its own cache" in caplog.text
    monkeypatch.setenv("OMLX_CACHE_REQUIRE", "1")
    with pytest.raises(UnusableHost, match=r"Queue\.pond"):
        run(lacking)


def test_what_fails_while_the_cache_is_put_in_place_leaves_the_server_its_own() -> None:
    def fails(*_: object) -> None:
        raise AttributeError("another version")

    def required(*_: object) -> None:
        raise UnusableHost("required")

    launching.put(fails, object(), lambda: "a store")  # type: ignore[arg-type, return-value]
    with pytest.raises(UnusableHost):
        launching.put(required, object(), lambda: "a store")  # type: ignore[arg-type, return-value]


def test_what_opens_the_store_can_be_handed_to_a_spawned_process() -> None:
    assert pickle.loads(pickle.dumps(open_store)) is open_store
    assert pickle.loads(pickle.dumps(partial(open_store, "a"))).func is open_store


def test_a_process_has_one_store_and_a_closed_one_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMLX_CACHE_HOT_CACHE_ONLY", "1")
    monkeypatch.setenv("OMLX_CACHE_SOCKET", "off")
    monkeypatch.setattr(launching, "show_logs", lambda settings: None)
    assert launching.close_store()
    first = open_store("a-server")
    try:
        assert first.name == "a-server"
        assert open_store() is first
        assert launching.close_store()
        assert first.closed
        assert open_store() is not first
    finally:
        assert launching.close_store()


SERVES = """
import os, signal, sys
from types import SimpleNamespace
from omlx_cache.integrations import launching
from omlx_cache.integrations.host_server import HostServer

def main(arguments):
    launching.open_store()
    {body}

launching.find = lambda name: SimpleNamespace(
    HOST=HostServer(name, "pytest", ">=1"), place=lambda opener: None, main=main)
sys.exit(launching.launch("a-server", []))
"""


def test_a_server_that_lacks_a_package_is_refused_in_a_line(
    run: Callable[[LaunchModule], LaunchModule],
) -> None:
    broken = LaunchModule()
    broken.place = partial(import_module, "no_such_package")  # type: ignore[method-assign, assignment]
    with pytest.raises(CannotRun, match="a-server cannot be run: "):
        run(broken)


@pytest.mark.parametrize(
    ("body", "code"),
    some(
        [
            ("pass", 0),
            ("raise SystemExit(3)", 3),
            ("raise SystemExit('a reason')", 1),
            ("raise KeyboardInterrupt", 130),
            ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", 0),
            # As uvicorn: it handles the signal, ends, and raises it again for who was there before.
            ("signal.signal(signal.SIGTERM, signal.getsignal(15)); signal.raise_signal(15)", 0),
        ],
        ("raise SystemExit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", 0),
    ),
)
def test_whatever_ends_the_server_the_store_is_closed_and_the_exit_code_its_own(
    body: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_COLD_DIR", str(tmp_path / "cold"))
    monkeypatch.setenv("OMLX_CACHE_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("OMLX_CACHE_LOG_LEVEL", "debug")
    ended = subprocess.run(
        [sys.executable, "-c", SERVES.format(body=body)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == code, ended.stderr
    assert "keeps the prompts of a-server (pytest " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_store_that_is_opened_for_a_server_has_its_status_at_a_port_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMLX_CACHE_HOT_CACHE_ONLY", "1")
    monkeypatch.setenv("OMLX_CACHE_SOCKET", "off")
    monkeypatch.setenv("OMLX_CACHE_STATUS", "on")
    monkeypatch.setattr(launching, "show_logs", lambda settings: None)
    assert launching.close_store()
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level("INFO"):
        try:
            open_store("a-server")
            url = caplog.messages[-1].removeprefix("status page: ")
            with urllib.request.urlopen(f"{url}/overview.json", timeout=20) as answer:
                assert json.load(answer)["processes"][0]["name"] == "a-server"
            assert launching.close_store()
            # A port that somebody has costs the status, not the server.
            monkeypatch.setenv("OMLX_CACHE_STATUS", str(taken.getsockname()[1]))
            open_store("a-server")
            assert "OMLX_CACHE_STATUS=PORT names another port" in caplog.messages[-1]
        finally:
            assert launching.close_store()
