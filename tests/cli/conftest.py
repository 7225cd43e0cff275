"""Stores in processes of their own, and the command line in another."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.children import Process, embedded_stores
from kit.trees import short_directory
from omlx_cache_daemon.cli import main

Start = Callable[..., Process]
_SCRIPT = Path(__file__).with_name("store_process.py")


def _variables(runtime: Path, cold: Path) -> dict[str, str]:
    """Those of a command line that sees the stores of these directories only."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        "OMLX_CACHE_RUNTIME_DIR": str(runtime),
        "OMLX_CACHE_COLD_DIR": str(cold),
        "NO_COLOR": "",
    }


@pytest.fixture
def environment(runtime_dir: Path, tmp_path: Path, forks: None) -> dict[str, str]:
    """The variables of a command line that sees this test's stores and cold directory only."""
    return _variables(runtime_dir, tmp_path / "cold")


@pytest.fixture
def start(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[Start]:
    """Starts stores of the module's `EMBED` with arguments; keywords add variables."""
    with embedded_stores(request.module.EMBED) as run:
        yield lambda *arguments, **variables: run({**environment, **variables}, *arguments)


@pytest.fixture(scope="module")
def one_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forks: None
) -> Iterator[dict[str, str]]:
    """The variables of a command line that sees one store, of the module's `STORE`, which outlives
    a test."""
    with short_directory() as runtime, embedded_stores(request.module.STORE) as run:
        variables = _variables(runtime, tmp_path_factory.mktemp("one") / "cold")
        run(variables, "first")
        yield variables


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def assert_refused(self, code: int, said: str = "") -> None:
        assert (self.code, self.out) == (code, "")
        assert said in self.err


Cli = Callable[..., Ended]


@pytest.fixture
def cli_process(environment: dict[str, str]) -> Cli:
    """Runs `omlx-cache` with arguments in a process of its own; keywords add variables."""

    def run(*arguments: str, **variables: str) -> Ended:
        ended = subprocess.run(
            [sys.executable, "-m", "omlx_cache_daemon", *arguments],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return run


@pytest.fixture
def cli(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """Runs `omlx-cache` in this process, which takes a tenth of the time; keywords add variables
    for the one run."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object, **variables: str) -> Ended:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            try:
                code = main(list(map(str, arguments)))
            except SystemExit as ended:
                # As --help leaves.
                code = int(ended.code or 0)
        return Ended(code, *capsys.readouterr())

    return run


@dataclass(frozen=True, slots=True)
class Store:
    """A process with a control socket."""

    process: "subprocess.Popen[str]"
    path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


StartStore = Callable[..., Store]


@pytest.fixture
def start_store(environment: dict[str, str]) -> Iterator[StartStore]:
    """Starts a store process and waits until it listens; `socket=` chooses the path."""
    started: list[Store] = []

    def start(name: str = "tiny", socket: str = "auto") -> Store:
        process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), name, socket],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        store = Store(process, Path(process.stdout.readline().strip()))
        started.append(store)
        return store

    yield start
    for store in started:
        store.process.send_signal(signal.SIGCONT)
        store.process.communicate(timeout=30)
