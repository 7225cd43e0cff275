"""The command line against a real BlockStore in another process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.children import embedded_stores

Cli = Callable[..., Any]

_EMBED = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="64MiB"), name="embedded"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_store_answers_and_takes_its_socket_with_it(
    cli: Cli, environment: dict[str, str], runtime_dir: Path
) -> None:
    with embedded_stores(_EMBED) as run:
        store = run(environment)
        (row,) = json.loads(cli("ps", "--format", "json").out)
        assert (row["pid"], row["name"], row["hot"]["limit_bytes"]) == (
            store.pid,
            "embedded",
            2**26,
        )
        assert json.loads(cli("stats", "--format", "json").out)["hot"]["limit_bytes"] == 2**26
        assert json.loads(cli("ls", "--format", "json").out) == []
    assert list(runtime_dir.iterdir()) == []
    assert cli("ps").code == 69


@pytest.mark.nightly
def test_a_tier_that_could_not_be_opened_is_shown_as_off(
    cli: Cli, environment: dict[str, str], tmp_path: Path
) -> None:
    cold = tmp_path / "cold"
    cold.mkdir()
    (cold / "letter").write_text("mine")
    cold.chmod(0o777)
    with embedded_stores(_EMBED) as run:
        run(environment)
        header, row = cli("ps").out.splitlines()
        assert row[header.index("COLD") :].split()[0] == "off", row
        state = json.loads(cli("ps", "--format", "json").out)[0]["cold"]["state"]
        assert state.startswith("unavailable: ")
