"""Stores in processes of their own, and the command line in another."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.children import embedded_stores
from omlx_cache_daemon.cli import main

_SCRIPT = Path(__file__).with_name("store_process.py")


@contextmanager
def _runtime_dir() -> Iterator[Path]:
    """A private directory whose path leaves room for a socket's name; pytest's own do not."""
    path = Path(tempfile.mkdtemp(prefix=f"oc-{os.getpid()}-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def _variables(runtime: Path, cold: Path) -> dict[str, str]:
    """Those of a command line that sees the stores of these directories only."""
    hidden = ("OMLX_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {
        **kept,
        "OMLX_CACHE_RUNTIME_DIR": str(runtime),
        "OMLX_CACHE_COLD_DIR": str(cold),
        "NO_COLOR": "",
        # As the installed program finds its packages when nothing is installed.
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    with _runtime_dir() as path:
        yield path


@pytest.fixture
def environment(runtime_dir: Path, tmp_path: Path) -> dict[str, str]:
    """The variables of a command line that sees this test's stores and cold directory only."""
    return _variables(runtime_dir, tmp_path / "cold")


@pytest.fixture(scope="module")
def one_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The variables of a command line that sees one store, of the module's `STORE`, which outlives
    a test."""
    with _runtime_dir() as runtime, embedded_stores(request.module.STORE) as run:
        variables = _variables(runtime, tmp_path_factory.mktemp("one") / "cold")
        run(variables, "first")
        yield variables


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    def assert_refused(self, code: int, said: str = "") -> None:
        assert (self.code, self.out) == (code, "")
        assert said in self.err


Cli = Callable[..., Result]


@pytest.fixture
def cli_process(environment: dict[str, str]) -> Cli:
    """Runs `omlx-cache` with arguments in a process of its own; keywords add variables."""

    def run(*arguments: str, **variables: str) -> Result:
        ended = subprocess.run(
            [sys.executable, "-m", "omlx_cache_daemon", *arguments],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Result(ended.returncode, ended.stdout, ended.stderr)

    return run


@pytest.fixture
def cli(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """Runs `omlx-cache` in this process, which takes a tenth of the time; keywords add variables
    for the one run."""
    for name in [name for name in os.environ if name.startswith("OMLX_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object, **variables: str) -> Result:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            try:
                code = main(list(map(str, arguments)))
            except SystemExit as ended:
                # As --help leaves.
                code = int(ended.code or 0)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def on_a_terminal(environment: dict[str, str]) -> Callable[..., tuple[int, str]]:
    """Runs `omlx-cache` with a terminal as its input, on which an answer is typed; returns its exit
    code and what it wrote."""

    def run(answer: str, *arguments: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "omlx_cache_daemon", *arguments],
                env=environment,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            os.write(ours, answer.encode())
            out, _ = process.communicate(timeout=60)
        finally:
            os.close(ours)
            os.close(theirs)
        return process.returncode, out

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
