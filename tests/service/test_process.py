"""The service as a process: how it begins, what it tells its manager, how it ends."""

import json
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from kit.output import check_output
from kit.remote.processes import until

from .conftest import Daemon, started


def test_the_directory_is_made_as_a_store_makes_it_and_the_watchdog_hears_of_it(
    daemon: Daemon,
) -> None:
    made = (daemon.cold_dir, daemon.cold_dir / "keeper.json")
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o600]
    for _ in range(2):
        daemon.wait_for("WATCHDOG=1")


def test_ps_shows_it_and_no_command_takes_it_for_a_store(daemon: Daemon) -> None:
    rows = json.loads(daemon.run("ps", "--format", "json").stdout)
    check_output("ps", rows)
    [row] = rows
    assert (row["role"], row["pid"]) == ("service", daemon.process.pid)
    assert row["cold"]["dir"] == str(daemon.cold_dir)
    assert daemon.run("stats").returncode == 69
    for command in ("ps", "stats", "config", "ls"):
        ended = daemon.run(command, "--socket", daemon.socket, "--format", "json")
        assert ended.returncode == 0, ended.stderr
        check_output(command, json.loads(ended.stdout))


def test_a_second_one_of_the_directory_ends_and_says_why(home: Path) -> None:
    with started(home, "--status-port", "0") as first:
        port = first.url.rpartition(":")[2]
        # With 1, a failure, for a port that is taken its manager would start it again for ever.
        ended = first.run("--status-port", port, module="omlx_cache_daemon.service")
        assert ended.returncode == 75, ended.stderr
        assert f"process {first.process.pid}" in ended.stderr
        assert len(list((home / "run").iterdir())) == 1


def test_a_reload_is_told_and_a_bad_file_changes_nothing(home: Path) -> None:
    file, budget = home / "service.toml", home / "cold" / "budget.json"
    file.write_text('cold_bytes = "40MiB"\nremote_connections = 4\n')
    with started(home, "--config", str(file)) as daemon:
        assert daemon.log.read_text().count("remote_connections has no effect any more") == 1
        assert json.loads(budget.read_text())["bytes"] == 40 * 2**20
        file.write_text("cold_byte = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in daemon.wait_for("RELOADING=1")
        daemon.wait_for("READY=1")
        assert "the nearest is cold_bytes" in daemon.log.read_text()
        file.write_text('cold_bytes = "20MiB"\n')
        daemon.reload()
        until(lambda: json.loads(budget.read_text())["bytes"] == 20 * 2**20)
        assert daemon.end() == 0
        daemon.wait_for("STOPPING=1")
        assert list((home / "run").iterdir()) == []
        assert json.loads((home / "cold" / "keeper.json").read_text())["pid"] == 0


@pytest.mark.nightly
def test_one_whose_disk_hangs_is_seen_to_hang_and_ends_at_its_deadline(home: Path) -> None:
    name = f"@omlx-cached-{home.name}" if sys.platform == "linux" else str(home / "notify")
    hanging = (str(Path(__file__).with_name("hanging.py")),)
    variables = {"WATCHDOG_USEC": "300000", "NOTIFY_SOCKET": name}
    with started(home, "--drain-seconds", "0.3", start=hanging, **variables) as daemon:
        until(lambda: not daemon.hears("WATCHDOG=1", 0.5))
        assert daemon.run("stats", "--pid", str(daemon.process.pid)).returncode == 69
        began = time.monotonic()
        assert daemon.end() == 0
        assert time.monotonic() - began < 5
        assert "the disk does not answer in time" in daemon.log.read_text()
