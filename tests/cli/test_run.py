"""`omlx-cache run`: what it refuses, in one line, before a server is started."""

import os
import sys
from pathlib import Path

import pytest

from kit.versions import BEFORE_0_32
from omlx_cache.integrations import launching
from omlx_cache_daemon.cli import main
from omlx_cache_daemon.commands import run

from .conftest import Cli

SERVERS = ("mlx-openai-server", "mlx_lm.server", "mlx_vlm.server", "vllm-mlx")


def test_help_names_the_servers_and_where_the_settings_are(cli: Cli) -> None:
    shown = " ".join(cli("run", "--help").out.split())
    assert all(name in shown for name in SERVERS)
    assert "omlx-cache config" in shown


def test_behind_its_name_everything_is_the_servers(cli: Cli) -> None:
    shown = cli("run", "mlx_lm.server", "--help")
    assert shown.code == 0
    assert shown.out.startswith("usage: mlx_lm.server ")
    assert "--prompt-cache-size" in shown.out
    assert "keeps the prompts" not in shown.err, "nothing is kept by a help text"


def test_without_a_server_the_names_are_told(cli: Cli) -> None:
    ended = cli("run")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        f"omlx-cache: name a server: {', '.join(SERVERS)}; see omlx-cache run --help\n"
    )


@pytest.mark.nightly
def test_a_flag_that_the_server_does_not_have_is_refused_by_it(cli: Cli) -> None:
    ended = cli("run", "mlx_lm.server", "--no-such-flag")
    assert ended.code == 2
    assert "mlx_lm.server: error: unrecognized arguments: --no-such-flag" in ended.err


def test_a_flag_before_the_server_is_ours(cli: Cli) -> None:
    ended = cli("run", "--model", "x", "mlx_lm.server")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("omlx-cache: --model: unknown flag")


def test_an_unknown_server_is_told_the_names(cli: Cli) -> None:
    ended = cli("run", "mlx-lm.server", "--model", "x")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "omlx-cache: mlx-lm.server: unknown server; the nearest is mlx_lm.server; "
        f"known: {', '.join(SERVERS)}\n"
    )


@pytest.mark.nightly
def test_a_bad_setting_ends_it_as_it_ends_serve(cli: Cli) -> None:
    bad = {"OMLX_CACHE_HOT_BYTES": "much"}
    ended = cli("run", "mlx_lm.server", "--model", "x", **bad)
    served = cli("serve", "--model", "x", **bad)
    assert ended.code == served.code == 78
    assert ended.err.splitlines() == served.err.splitlines()[-1:]


def test_a_directory_that_no_store_could_open_is_told_before_the_model_loads(
    cli: Cli, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    ended = cli("run", "mlx_lm.server", "--model", "x", OMLX_CACHE_COLD_DIR=str(taken))
    assert ended.code == 1
    assert ended.err.startswith(f"omlx-cache: nothing can be kept in {taken}: ")
    assert "OMLX_CACHE_HOT_CACHE_ONLY=1" in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.nightly
@pytest.mark.skipif(BEFORE_0_32, reason="mlx-lm: its server cannot pack caches")
def test_packing_that_mlx_lacks_is_refused(cli: Cli) -> None:
    ended = cli("run", "mlx_lm.server", "--model", "x", "--kv-bits", "7")
    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith("mlx_lm.server: kv_bits")


def test_with_require_the_server_is_told_before_it_is_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []

    def launch(server: str, arguments: list[str]) -> int:
        told.append((server, arguments, os.environ.get("OMLX_CACHE_REQUIRE")))
        return 0

    # Set, so that it is as before once this test is over.
    monkeypatch.setenv("OMLX_CACHE_REQUIRE", "0")
    monkeypatch.setattr(launching, "launch", launch)
    monkeypatch.setattr(run, "end_process", sys.exit)
    with pytest.raises(SystemExit):
        main(["run", "--require", "vllm-mlx", "--port", "1"])
    assert told == [("vllm-mlx", ["--port", "1"], "1")]
