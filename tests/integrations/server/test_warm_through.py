"""`omlx-cache warm` while a server runs: the server does it, or is said to see it later."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.output import check_output
from kit.tinylm import LmServer

from .conftest import SYSTEM, Start, ask
from .test_warm import CHATS, chats_file, warm


def report_of(done: Any) -> Any:
    return json.loads(done.stdout)


def port_of(server: LmServer) -> str:
    return server.url.rpartition(":")[2]


@pytest.mark.parametrize("model", some(["dense", "windowed", "hybrid"], "hybrid"))
def test_the_running_server_restores_what_was_warmed_at_once_and_after_kill_9(
    model: str, start: Start, home: Path, models: dict[str, Path]
) -> None:
    server = start(model)
    flags = ["--model", str(models[model]), "--format", "json"]
    done = warm(home, chats_file(home), *flags)
    first = report_of(done)
    check_output("warm", first)
    assert "uses this directory" not in done.stderr
    assert all(line.startswith("warming: ") for line in done.stderr.splitlines())
    assert first["server"] == f"serve :{port_of(server)}, {model}"
    assert (first["prompts"], first["warm_prompts"], first["durable"]) == (2, 0, True)
    assert first["computed_tokens"] > len(SYSTEM) * 2
    assert first["stored_bytes"] > 0
    for again in (False, True):
        if again:
            server.kill()
            server = start(model)
        for chat in CHATS:
            messages = [chat["messages"][0], {"role": "user", "content": "Something else?"}]
            turn = ask(server, models[model], messages)
            assert turn.cached_tokens >= len(str(messages[0]["content"]))


@pytest.mark.nightly
def test_several_servers_are_a_question_that_a_process_id_answers(start: Start, home: Path) -> None:
    servers = [start("dense"), start("dense")]
    done = warm(home, chats_file(home), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "2 servers are running (serve :" in done.stderr
    pids = sorted(re.findall(r":(\d+), dense, pid (\d+)", done.stderr))
    assert sorted(port for port, _ in pids) == sorted(str(port_of(server)) for server in servers)
    for port, pid in pids:
        report = report_of(warm(home, chats_file(home), "--pid", pid, "--format", "json"))
        assert report["server"] == f"serve :{port}, dense"
    missing = warm(home, chats_file(home), "--pid", "1", check=False)
    assert (missing.returncode, missing.stdout) == (69, "")
    assert "process 1 has no server with this model" in missing.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    some(
        [
            (["--beside"], ", dense uses this directory: what"),
            (["--block-size", "32"], ", dense uses this directory, with block_size=64: what"),
            (
                ["--draft-model", "draft"],
                ", dense uses this directory, with draft model none: what",
            ),
        ],
        (["--beside"], ", dense uses this directory: what"),
    ),
    ids=["as it is told", "another block size", "a draft model"],
)
def test_beside_a_server_it_says_when_that_finds_it(
    flags: list[str], said: str, start: Start, home: Path, models: dict[str, Path]
) -> None:
    server = start("dense")
    flags = [str(models.get(flag, flag)) for flag in flags]
    done = warm(home, chats_file(home), "--model", str(models["dense"]), *flags, "--format", "json")
    report = report_of(done)
    assert report["server"] is None
    assert report["stored_bytes"] > 0
    assert done.stderr.startswith(f"omlx-cache: serve :{port_of(server)}{said}")
    assert done.stderr.endswith(" it can use of these pages it finds at its next lookup\n")


def test_a_server_with_another_model_is_named_with_it(
    start: Start, home: Path, models: dict[str, Path]
) -> None:
    start("wide")
    done = warm(home, chats_file(home), "--model", str(models["dense"]), "--format", "json")
    assert report_of(done)["server"] is None
    assert f", wide uses this directory, with the model {models['wide']}: what" in done.stderr


def test_a_prompt_that_the_server_refuses_is_named(
    start: Start, home: Path, models: dict[str, Path]
) -> None:
    start("dense", "--max-prompt-tokens", "100")
    done = warm(home, chats_file(home), "--model", str(models["dense"]), check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "prompt 1: serve :" in done.stderr
    assert "answered 400: the prompt has " in done.stderr


def test_the_command_does_not_import_mlx_when_a_server_does_the_work(
    start: Start, home: Path
) -> None:
    start("dense")
    code = (
        "import sys\nfrom omlx_cache_daemon.cli import main\n"
        "assert main(sys.argv[1:]) == 0\nassert not {'mlx', 'mlx_lm'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, "warm", str(chats_file(home))],
        env={**os.environ, "OMLX_CACHE_RUNTIME_DIR": str(home / "run")},
        check=True,
        capture_output=True,
        timeout=60,
    )
