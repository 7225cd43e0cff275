"""`omlx-cache size`, through the command line's own entry."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.size.test_estimate import GEMMA_3_27B, GIB, LLAMA_7B, QWEN3_NEXT_80B

from kit.output import check_output
from omlx_cache_daemon.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Any:
    def write(config: dict[str, Any]) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return str(path)

    return write


@pytest.mark.nightly
def test_text_says_keys_and_values_and_the_total(model: Any, capsys: Any) -> None:
    assert main(["size", model(LLAMA_7B)]) == 0
    out = capsys.readouterr().out
    head, *rows = out.splitlines()
    assert head == "llama, codec dense, 1 sequence of 4,096 tokens, blocks of 256: 2 GiB"
    assert " ".join(rows[-1].split()) == "all 32 512 KiB 128 MiB - 1 GiB 1 GiB 2 GiB"


def test_json_has_totals_and_groups(model: Any, capsys: Any) -> None:
    arguments = ["--context", "32k", "--batch", "2", "--reserve", "1k", "--format", "json"]
    assert main(["size", model(GEMMA_3_27B), *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["context"], result["reserve"], result["batch"]) == (32_768, 1024, 2)
    assert [group["kind"] for group in result["groups"]] == ["window", "paged"]
    assert result["context_bytes"] == sum(group["context_bytes"] for group in result["groups"])
    assert result["reserved_bytes"] > result["context_bytes"]


@pytest.mark.nightly
def test_all_codecs_are_compared(model: Any, capsys: Any) -> None:
    assert main(["size", model(LLAMA_7B), "--codec", "all", "--format", "json"]) == 0
    results = json.loads(capsys.readouterr().out)
    check_output("size", results)
    check_output("size", {"schema_version": 1, **results[0]})
    assert results[0]["context_bytes"] == 2 * GIB
    assert {result["codec"] for result in results} >= {"dense", "affine8", "turbo4"}
    assert main(["size", model(QWEN3_NEXT_80B), "--codec", "all"]) == 0
    assert "affine8" in capsys.readouterr().out


def test_a_model_that_is_not_found_is_a_failure_on_stderr(capsys: Any) -> None:
    assert main(["size", "/nowhere/at/all"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "/nowhere/at/all" in captured.err


@pytest.mark.parametrize("arguments", [["--context", "many"], ["--batch", "0"], ["--codec", "zip"]])
def test_a_wrong_option_is_a_usage_error(model: Any, arguments: list[str], capsys: Any) -> None:
    assert main(["size", model(LLAMA_7B), *arguments]) == 2
    assert capsys.readouterr().err.endswith("; see omlx-cache size --help\n")


@pytest.mark.nightly
def test_only_the_child_imports_mlx(model: Any) -> None:
    code = (
        "import sys; from omlx_cache_daemon.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or any(n.split('.')[0] in ('mlx', 'mlx_lm') for n in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code, "size", model(LLAMA_7B)], check=True)
