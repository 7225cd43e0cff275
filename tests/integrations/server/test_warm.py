"""`omlx-cache warm`, and a server that restores what it left behind."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.forks import run
from kit.tinylm import serve_ours
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.warming import read_prompts

from .conftest import SYSTEM, ask

pytestmark = pytest.mark.usefixtures("forks")

CHATS = [
    {"messages": [{"role": "system", "content": f"Rules. {SYSTEM}"}]},
    {
        "messages": [
            {"role": "system", "content": f"Facts. {SYSTEM}"},
            {"role": "user", "content": "What is warm?"},
        ]
    },
]


def warm(home: Path, file: Path, *flags: str, check: bool = True) -> Any:
    variables = {
        "OMLX_CACHE_COLD_DIR": str(home / "cold"),
        "OMLX_CACHE_RUNTIME_DIR": str(home / "run"),
        "OMLX_CACHE_HOT_BYTES": "64MiB",
        "OMLX_CACHE_COLD_BYTES": "1GiB",
        "OMLX_CACHE_MIN_FREE_BYTES": "0",
        "OMLX_CACHE_BLOCK_SIZE": "64",
        "HF_HUB_OFFLINE": "1",
    }
    command = ["omlx_cache_daemon", "warm", str(file), *flags]
    done = run(command, {**os.environ, **variables})
    assert done.returncode == 0 or not check, done.stderr
    return done


def chats_file(home: Path) -> Path:
    file = home / "chats.jsonl"
    file.write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))
    return file


@pytest.mark.parametrize("model", some(["dense", "hybrid"], "dense"))
def test_a_server_restores_what_was_warmed(
    model: str, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("w")
    flags = ["--model", str(models[model]), "--format", "json"]
    first = json.loads(warm(home, chats_file(home), *flags).stdout)
    assert first["prompts"] == 2
    assert first["warm_prompts"] == 0
    assert first["computed_tokens"] > len(SYSTEM) * 2
    again = json.loads(warm(home, chats_file(home), *flags).stdout)
    assert again["warm_prompts"] == 2
    assert (again["computed_tokens"], again["stored_bytes"]) == (2, 0)
    server = serve_ours(home, "--model", str(models[model]), forked=True)
    try:
        same = ask(server, models[model], CHATS[1]["messages"])
        assert same.cached_tokens == same.prompt_tokens - 1
        for chat in CHATS:
            messages = [chat["messages"][0], {"role": "user", "content": "Something else?"}]
            turn = ask(server, models[model], messages)
            assert turn.cached_tokens >= len(str(messages[0]["content"]))
    finally:
        server.kill()


def test_bad_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    for line in ("{", "3", '{"messages": []}', '{"messages": [1]}', '{"other": "x"}'):
        file.write_text(f'"fine"\n{line}\n')
        with pytest.raises(CommandError, match="line 2"):
            read_prompts(file)
    file.write_text('"one"\n\n{"prompt": "two"}\n[{"role": "user", "content": "three"}]\n')
    prompts = read_prompts(file)
    assert prompts[:2] == [{"prompt": "one"}, {"prompt": "two"}]
    assert prompts[2]["messages"] == [{"role": "user", "content": "three"}]


def test_a_missing_file_or_model_is_reported(tmp_path: Path) -> None:
    done = warm(tmp_path, tmp_path / "none.jsonl", "--model", "x", check=False)
    assert (done.returncode, "No such file" in done.stderr) == (1, True)
    done = warm(tmp_path, chats_file(tmp_path), check=False)
    assert (done.returncode, "--model" in done.stderr) == (2, True)
    flags = ["--model", str(tmp_path), "--hot-cache-only"]
    done = warm(tmp_path, chats_file(tmp_path), *flags, check=False)
    assert (done.returncode, "hot_cache_only" in done.stderr) == (78, True)


@pytest.mark.parametrize(
    "wrong", some(["--model", "--adapter-path", "--draft-model"], "--draft-model")
)
def test_what_cannot_be_loaded_is_named(
    wrong: str, models: dict[str, Path], tmp_path: Path
) -> None:
    flags = {"--model": str(models["dense"]), wrong: "/there/is none"}
    words = [word for flag in flags.items() for word in flag]
    done = warm(tmp_path, chats_file(tmp_path), *words, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("omlx-cache: cannot load ")
    assert "/there/is none" in done.stderr
    assert done.stderr.count("\n") == 1


def test_only_what_reached_the_disk_counts_as_written(
    models: dict[str, Path], tmp_path: Path
) -> None:
    flags = ["--model", str(models["dense"]), "--min-free-bytes", "1000TiB"]
    done = warm(tmp_path, chats_file(tmp_path), *flags, check=False)
    assert done.returncode == 1
    assert ", 0 B written to" in done.stdout
    assert "not everything could be written" in done.stderr
