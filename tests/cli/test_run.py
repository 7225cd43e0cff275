"""`omlx-cache run`: what it refuses, in one line, before a server is started."""

import os
import sys

import pytest

from kit.versions import BEFORE_0_32
from omlx_cache.integrations import launching
from omlx_cache_daemon.cli import main
from omlx_cache_daemon.commands import run

from .conftest import Cli

SERVERS = ("mlx-openai-server", "mlx_lm.server", "mlx_vlm.server", "vllm-mlx")


def test_behind_its_name_everything_is_the_servers(cli_process: Cli) -> None:
    shown = cli_process("run", "mlx_lm.server", "--help")
    assert (shown.code, shown.out[:22]) == (0, "usage: mlx_lm.server [")
    assert "--prompt-cache-size" in shown.out
    assert "keeps the prompts" not in shown.err, "nothing is kept by a help text"


_LM = ("mlx_lm.server", "--model", "x")


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "said"),
    [
        ((), {}, 2, f"name a server: {', '.join(SERVERS)}; see omlx-cache run --help"),
        (("--model", "x", "mlx_lm.server"), {}, 2, "--model: unknown flag"),
        (
            ("mlx-lm.server", "--model", "x"),
            {},
            2,
            "mlx-lm.server: unknown server; the nearest is mlx_lm.server; known: "
            f"{', '.join(SERVERS)}",
        ),
        (_LM, {"COLD_DIR": __file__}, 1, f"nothing can be kept in {__file__}: "),
        pytest.param(_LM, {"HOT_BYTES": "much"}, 78, "", marks=pytest.mark.nightly),
        pytest.param(
            ("mlx_lm.server", "--no-such-flag"),
            {},
            2,
            "mlx_lm.server: error: unrecognized arguments: --no-such-flag",
            marks=pytest.mark.nightly,
        ),
        (
            ("mlx_lm.server", "--hot-bytes=1GiB", "--cold-dir", "x"),
            {},
            2,
            "the cache's settings are variables here: OMLX_CACHE_HOT_BYTES, OMLX_CACHE_COLD_DIR",
        ),
        pytest.param(
            (*_LM, "--kv-bits", "7"),
            {},
            78,
            "kv_bits=7",
            marks=[
                pytest.mark.nightly,
                pytest.mark.skipif(BEFORE_0_32, reason="mlx-lm: its server cannot pack caches"),
            ],
        ),
    ],
)
def test_what_it_refuses_is_one_line_before_a_model_loads(
    cli_process: Cli, arguments: tuple[str, ...], variables: dict[str, str], code: int, said: str
) -> None:
    given = {f"OMLX_CACHE_{name}": value for name, value in variables.items()}
    ended = cli_process("run", *arguments, **given)
    line = ended.err.splitlines()[-1]
    assert (ended.code, ended.out) == (code, "")
    assert line.removeprefix("omlx-cache: ").startswith(said)
    assert ("OMLX_CACHE_HOT_CACHE_ONLY=1" in line) is ("COLD_DIR" in variables)
    if "HOT_BYTES" in variables:
        assert line == cli_process("serve", "--model", "x", **given).err.splitlines()[-1]


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
