"""A server that is asked by `ps` and `config` who it is and what it was told."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.tinylm import Server, serve_ours


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asked")


@pytest.fixture(scope="module")
def server(home: Path, models: dict[str, Path], forks: None) -> Iterator[Server]:
    arguments = ("--model", str(models["dense"]), "--hot-bytes", "96MiB")
    server = serve_ours(home, *arguments, forked=True)
    yield server
    assert server.stop() == 0, server.text()


def cli(home: Path, *arguments: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")}
    kept["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", *arguments],
        env={**kept, "OMLX_CACHE_RUNTIME_DIR": str(home / "run")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_it_is_named_by_port_and_model_before_its_first_request(server: Server, home: Path) -> None:
    port = server.url.rpartition(":")[2]
    pid = server.process.pid
    row = cli(home, "ps").splitlines()[1].split()
    assert row[:3] == [str(pid), "serve", f":{port}"]
    assert "dense" in row
    (asked,) = json.loads(cli(home, "ps", "--format", "json"))
    assert asked["models"] == ["dense"]
    assert asked["service"]["url"] == server.url
