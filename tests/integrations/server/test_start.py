"""A server that cannot start says so in one line, before it says that it listens."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

Done = subprocess.CompletedProcess[str]


def start(*flags: str) -> Done:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "omlx_cache_daemon", "serve", "--hot-cache-only"]
    return subprocess.run(
        [*command, "--socket", "off", "--log-level", "ERROR", *flags],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_one_line(done: Done, beginning: str) -> None:
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(beginning)
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("wrong", ["--model", "--adapter-path", "--draft-model"])
def test_what_cannot_be_loaded_is_named(wrong: str, models: dict[str, Path]) -> None:
    flags = {"--model": str(models["dense"]), wrong: "/there/is none"}
    words = [word for flag in flags.items() for word in flag]
    done = start("--port", "0", *words)
    assert_one_line(done, "omlx-cache: cannot load ")
    assert "/there/is none" in done.stderr


def test_a_host_that_nobody_knows_is_named(models: dict[str, Path]) -> None:
    done = start("--host", "nohost.invalid", "--model", str(models["dense"]))
    assert_one_line(done, "omlx-cache: cannot listen on nohost.invalid, port 8080: ")


@pytest.mark.parametrize("port", ["99999", "65536", "-5", "http"])
def test_a_port_that_is_none_is_a_usage_error(port: str) -> None:
    done = start(f"--port={port}")
    assert done.returncode == 2
    assert "is not a port from 0 to 65535" in done.stderr


def test_a_signal_while_the_model_loads_ends_the_server(tmp_path: Path) -> None:
    """The configuration is a pipe that nobody writes to: loading the model never ends."""
    configuration = tmp_path / "config.json"
    os.mkfifo(configuration)
    command = [sys.executable, "-m", "omlx_cache_daemon", "serve", "--hot-cache-only", "--port=0"]
    process = subprocess.Popen(
        [*command, "--socket", "off", "--model", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        # Returns when the server has opened the other end.
        with configuration.open("wb"):
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=30) == ("", None)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
