"""The service as a process: how it begins, what it tells its manager, how it ends."""

import json
import os
import re
import socket
import stat
import sys
import time
from pathlib import Path

import pytest

from kit.output import check_output
from kit.remote.processes import until

from .conftest import Daemon


def test_the_directory_is_made_as_a_store_makes_it(daemon: Daemon) -> None:
    assert stat.S_IMODE(daemon.cold_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((daemon.cold_dir / "keeper.json").stat().st_mode) == 0o600


def test_it_tells_the_watchdog_that_it_is_alive(daemon: Daemon) -> None:
    for _ in range(2):
        daemon.wait_for("WATCHDOG=1")


def test_ps_shows_it_and_no_command_takes_it_for_a_store(daemon: Daemon) -> None:
    rows = json.loads(daemon.run("ps", "--format", "json").stdout)
    check_output("ps", rows)
    [row] = rows
    assert row["role"] == "service"
    assert row["pid"] == daemon.process.pid
    assert row["cold"]["dir"] == str(daemon.cold_dir)
    assert daemon.run("stats").returncode == 69


def test_ps_and_the_log_tell_people_what_it_has_and_no_memory(daemon: Daemon) -> None:
    [row] = daemon.run("ps").stdout.splitlines()[1:]
    *_, hot, cold, remote, pending, sessions, _, _ = re.split(r"\s{2,}", row.strip())
    assert (hot, remote, pending, sessions) == ("-", "-", "-", "-")
    assert "MiB" in cold or "GiB" in cold
    [kept] = [line for line in daemon.log.read_text().splitlines() if " keeps " in line]
    assert "iB, ok" in kept
    assert "bytes" not in kept


def test_its_socket_answers_as_a_stores_does(daemon: Daemon) -> None:
    path = str(daemon.home / "run" / f"service-{daemon.process.pid}.sock")
    for command in ("ps", "stats", "config", "ls"):
        ended = daemon.run(command, "--socket", path, "--format", "json")
        assert ended.returncode == 0, ended.stderr
        check_output(command, json.loads(ended.stdout))


def test_a_second_one_of_the_directory_ends_and_says_why(daemon: Daemon) -> None:
    ended = daemon.run(module="omlx_cache_daemon.service")
    assert ended.returncode == 75
    assert f"process {daemon.process.pid}" in ended.stderr
    assert len(list((daemon.home / "run").iterdir())) == 1


@pytest.mark.nightly
def test_a_second_one_with_the_same_status_port_ends_as_one_that_is_too_many(home: Path) -> None:
    """With 1, a failure, its manager would start it again for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first = Daemon(home, "--status-port", str(port))
    try:
        first.wait_for("READY=1")
        ended = first.run("--status-port", str(port), module="omlx_cache_daemon.service")
        assert ended.returncode == 75, ended.stderr
        assert f"process {first.process.pid}" in ended.stderr
    finally:
        first.close()


def test_a_reload_is_told_and_a_bad_file_changes_nothing(home: Path) -> None:
    file = home / "service.toml"
    file.write_text('cold_bytes = "40MiB"\nremote_connections = 4\n')
    daemon = Daemon(home, "--config", str(file))
    try:
        daemon.wait_for("READY=1")
        assert daemon.log.read_text().count("remote_connections has no effect any more") == 1
        budget = daemon.cold_dir / "budget.json"
        assert json.loads(budget.read_text())["bytes"] == 40 * 2**20
        file.write_text("cold_byte = 1\n")
        os.kill(daemon.process.pid, 1)
        assert "MONOTONIC_USEC=" in daemon.wait_for("RELOADING=1")
        daemon.wait_for("READY=1")
        assert "the nearest is cold_bytes" in daemon.log.read_text()
        file.write_text('cold_bytes = "20MiB"\n')
        os.kill(daemon.process.pid, 1)
        daemon.wait_for("READY=1")
        until(lambda: json.loads(budget.read_text())["bytes"] == 20 * 2**20)
        assert daemon.end() == 0
        daemon.wait_for("STOPPING=1")
        assert list((home / "run").iterdir()) == []
        assert json.loads((daemon.cold_dir / "keeper.json").read_text())["pid"] == 0
    finally:
        daemon.close()


@pytest.mark.nightly
def test_one_whose_disk_hangs_is_seen_to_hang_and_ends_at_its_deadline(home: Path) -> None:
    hanging = str(Path(__file__).with_name("hanging.py"))
    name = f"@omlx-cached-{os.getpid()}"
    daemon = Daemon(
        home,
        "--drain-seconds",
        "0.3",
        start=(hanging,),
        WATCHDOG_USEC="300000",
        NOTIFY_SOCKET=name if sys.platform == "linux" else str(home / "notify"),
    )
    try:
        daemon.wait_for("READY=1")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                daemon.wait_for("WATCHDOG=1", 0.5)
            except AssertionError:
                break
        else:
            raise AssertionError("it says that it is alive, and it is not")
        assert daemon.run("ps", "--pid", str(daemon.process.pid)).returncode == 69
        began = time.monotonic()
        assert daemon.end() == 0
        assert time.monotonic() - began < 5
        assert "the disk does not answer in time" in daemon.log.read_text()
    finally:
        daemon.close()
