"""A server that cannot start says so in one line, before it says that it listens."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kit.examples import some
from kit.forks import environment, run
from kit.remote.processes import until
from kit.storage.mounts import small_disk
from kit.tinylm import LmServer, free_port, serve_ours
from kit.tinylm.process import start_server
from kit.wire import completion, exchange

from .conftest import SYSTEM, ask

Done = subprocess.CompletedProcess[str]
pytestmark = pytest.mark.usefixtures("forks")


def start(*flags: str, memory_only: bool = True) -> Done:
    command = ["omlx_cache_daemon", "serve", *["--hot-cache-only"] * memory_only]
    command += ["--socket", "off", "--log-level", "ERROR", *flags]
    return run(command, environment())


def refused(beginning: str, *flags: str, memory_only: bool = True) -> str:
    """Return the one line that a server says which does not start."""
    done = start("--port", "0", *flags, memory_only=memory_only)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(beginning)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "wrong", some(["--model", "--adapter-path", "--draft-model"], "--adapter-path")
)
def test_what_cannot_be_loaded_is_named(wrong: str, models: dict[str, Path]) -> None:
    flags = {"--model": str(models["dense"]), wrong: "/there/is none"}
    words = [word for flag in flags.items() for word in flag]
    assert "/there/is none" in refused("omlx-cache: cannot load ", *words)


@pytest.mark.parametrize(
    "place", some(["/there/is/none", "./none", "~/none", "models/of/mine"], "models/of/mine")
)
def test_a_folder_that_is_not_there_is_no_name_on_the_hub(place: str) -> None:
    refused(f"omlx-cache: cannot load {place}: there is no folder {place}\n", "--model", place)


def test_a_folder_without_a_configuration_is_no_model(tmp_path: Path) -> None:
    beginning = f"omlx-cache: cannot load {tmp_path}: {tmp_path} is no model folder"
    assert "no config.json" in refused(beginning, "--model", str(tmp_path))


def test_a_name_that_is_no_folder_and_not_in_reach_on_the_hub_is_both() -> None:
    beginning = "omlx-cache: cannot load tiny: there is no such folder here, and the "
    assert "hub cannot be reached (" in refused(beginning, "--model", "tiny")


def test_a_cold_directory_that_others_may_change_ends_the_start(
    models: dict[str, Path], tmp_path: Path
) -> None:
    directory = tmp_path / "cold"
    directory.mkdir()
    (directory / "letter").write_text("mine")
    directory.chmod(0o777)
    flags = ("--model", str(models["dense"]), "--cold-dir", str(directory))
    beginning = f"omlx-cache: nothing can be kept in {directory}: "
    assert "chmod 700" in refused(beginning, *flags, memory_only=False)


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a file system like Linux's /proc"
)
def test_a_cold_directory_that_only_opening_it_shows_to_be_unusable_ends_the_start(
    models: dict[str, Path],
) -> None:
    flags = ("--model", str(models["dense"]), "--cold-dir", "/proc/x")
    refused("omlx-cache: nothing can be kept in /proc/x: ", *flags, memory_only=False)


def test_a_server_starts_without_its_disk_and_uses_it_when_it_is_back(
    models: dict[str, Path], tmp_path: Path
) -> None:
    place = tmp_path / "mnt"
    place.mkdir()

    def serve(said: str) -> LmServer:
        server = serve_ours(
            tmp_path / "home",
            *("--model", str(models["dense"])),
            forked=True,
            OMLX_CACHE_COLD_DIR=str(place / "cold"),
            XDG_STATE_HOME=str(tmp_path / "state"),
        )
        try:
            assert said in server.text()
            assert ask(server, models["dense"], [{"role": "user", "content": SYSTEM}]).text
        except BaseException:
            server.kill()
            raise
        return server

    def umount() -> None:
        subprocess.run(["umount", "-l", str(place)], check=True)

    with small_disk(tmp_path / "image", "size=64m") as disk:
        mount = ["mount", "--bind", str(disk.path), str(place)]
        subprocess.run(mount, check=True)
        assert serve("").stop() == 0
        umount()
        server = serve(f"nothing is mounted at {place}")
        assert not (place / "cold").exists()
        subprocess.run(mount, check=True)
        try:
            until(lambda: "is there again" in server.text())
            assert server.stop() == 0
            disk.remount("ro")
            serve("Read-only file system: pages that are there are restored").stop()
        finally:
            server.kill()
            umount()


def test_a_port_that_somebody_listens_on_is_named(models: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        beginning = f"omlx-cache: cannot listen on 127.0.0.1, port {port}: Address already"
        said = refused(beginning, "--port", str(port), "--model", str(models["dense"]))
    assert said.endswith("; `omlx-cache ps` shows running servers, and --port takes another\n")


@pytest.mark.parametrize("port", some(["99999", "65536", "-5", "http"], "65536"))
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


LACKS = """
import sys
from dataclasses import replace
from omlx_cache.integrations import host_server
from omlx_cache_daemon.cli import main
gone, host = host_server.HostName("mlx_lm.server", "Gone"), host_server.MLX_LM
host_server.MLX_LM = replace(host, needed=(*host.needed, gone))
sys.exit(main(sys.argv[1:]))
"""


def test_a_server_that_lacks_a_name_serves_with_its_own_cache_unless_it_is_required(
    models: dict[str, Path], tmp_path: Path
) -> None:
    port = free_port()
    command = ["-c", LACKS, "serve", "--port", str(port), "--hot-cache-only"]
    refused = subprocess.run(
        [sys.executable, *command, "--require"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert "has no `mlx_lm.server.Gone`" in refused.stderr.splitlines()[-1]
    command += ["--model", str(models["dense"]), "--log-level", "WARNING"]
    server = start_server(tmp_path / "log", command, environment(), port)
    try:
        assert "Gone`: it runs with its own cache" in server.text().splitlines()[0]
        assert exchange(server.url, completion(prompt="Hello")).status == 200
    finally:
        server.kill()
