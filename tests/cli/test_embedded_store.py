"""The command line against a real BlockStore in another process."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

_EMBED = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="64MiB"), name="embedded"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def embedded(environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", _EMBED],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_an_embedded_store_answers_every_command(
    cli: Cli, embedded: "subprocess.Popen[str]"
) -> None:
    (row,) = json.loads(cli("ps", "--format", "json").out)
    assert (row["pid"], row["name"]) == (embedded.pid, "embedded")
    assert json.loads(cli("stats", "--format", "json").out)["hot"]["limit_bytes"] == 2**26
    assert row["hot"]["limit_bytes"] == 2**26
    assert "64 MiB" in cli("ps").out
    assert json.loads(cli("ls", "--format", "json").out) == []


def test_an_embedded_store_takes_its_socket_with_it(
    cli: Cli, embedded: "subprocess.Popen[str]", runtime_dir: Path
) -> None:
    assert cli("ps").code == 0
    embedded.communicate(timeout=60)
    assert list(runtime_dir.iterdir()) == []
    assert cli("ps").code == 69


@pytest.fixture
def others_may_write(tmp_path: Path) -> None:
    """The cold directory, before a store is opened, as none would have it."""
    cold = tmp_path / "cold"
    cold.mkdir()
    (cold / "letter").write_text("mine")
    cold.chmod(0o777)


@pytest.mark.nightly
def test_a_tier_that_could_not_be_opened_is_shown_as_off(
    cli: Cli, others_may_write: None, embedded: "subprocess.Popen[str]"
) -> None:
    header, row = cli("ps").out.splitlines()
    assert row[header.index("COLD") :].split()[0] == "off", row
    state = json.loads(cli("ps", "--format", "json").out)[0]["cold"]["state"]
    assert state.startswith("unavailable: ")
