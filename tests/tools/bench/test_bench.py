import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Importing it starts what the client of object stores keeps until the process ends.
import kit.remote.engines  # noqa: F401
from kit.output import check_output
from omlx_cache.tools.bench import remote_rows
from omlx_cache.tools.bench.remote_rows import why_not
from omlx_cache.tools.bench.report import BEGIN, END, write_section
from omlx_cache.tools.bench.rows import Peak, Results, Row
from omlx_cache.tools.bench.sizes import SIZES
from omlx_cache.tools.bench.timing import in_turn
from omlx_cache_daemon.cli import main
from omlx_cache_storage.remote.engine import ExtraMissing, RemoteError


def _not_installed(*_: object, **__: object) -> None:
    raise ExtraMissing("redis://127.0.0.1 needs the package redis: pip install it")


def _refused(*_: object) -> None:
    raise RemoteError("refused", "nobody listens")


REMOTE = {
    *("remote restore, redis", "remote restore, redis, signed"),
    *("remote restore, file", "remote restore, file, signed"),
    "remote look-up of 131,072 tokens, redis, 1 ms each way",
}


@pytest.mark.nightly
def test_one_run_compares_with_every_limit_and_writes_its_section(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Title\n{BEGIN}\nold figures\n{END}\nafter\n")
    command = ["bench", "--size", "tiny", "--format", "json"]
    assert main([*command, "--write", str(page), "--dir", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    check_output("bench", told)
    compared = {(row["what"].split(",")[0], row["compared_with"]) for row in told["rows"]}
    assert compared >= {
        ("restore", "one memcpy"),
        ("restore", "one memcpy into new memory"),
        ("restore", "one MLX concatenation"),
        ("restore", "raw reads"),
        ("restore", "raw reads into new memory"),
        ("restore", "mlx-lm load_prompt_cache"),
        ("restore", "recomputing them"),
        ("commit", "one memcpy"),
        ("prefill of 64 tokens in 4 chunks", "the same without a cache"),
        ("commit of nothing new after a cold restore", "a commit of everything"),
        ("restore", "a restore on the spot"),
        ("commit and flush", "the same with none"),
        ("commit of 512 tokens x 2 layers with next to no bytes", "the bare SHA-256 chain"),
        ("append of a token x 2 layers", "the bare SHA-256 chain"),
        ("restore", "the same, asking for no changes"),
        ("what a miss asks: has anything changed", "that look-up"),
    }
    remote = {row["what"] for row in told["rows"] if row["what"].startswith("remote ")}
    assert remote == (set() if why_not() else REMOTE)
    assert all(row["ours"] > 0 and row["other"] > 0 for row in told["rows"])
    assert {peak["what"] for peak in told["peaks"]} == {"restore, hot", "restore, cold"}
    text = page.read_text()
    assert text.startswith(f"# Title\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old figures" not in text
    assert text.count("| restore, hot |") == 3
    assert platform.node() not in json.dumps(told["machine"])
    assert list(tmp_path.iterdir()) == [page], "the workspace is removed"


@pytest.mark.parametrize(
    ("name", "missing", "told"),
    [
        ("redis_program", lambda: None, "nor redis-server is installed"),
        ("check_extra", _not_installed, "needs the package redis"),
        ("measure_remote", _refused, "nobody listens"),
    ],
)
def test_without_a_server_or_a_client_that_works_remote_stores_are_left_out_and_it_is_said(
    name: str,
    missing: Callable[..., object],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(remote_rows, "redis_program", lambda: "/bin/redis-server")
    monkeypatch.setattr(remote_rows, name, missing)
    said: list[str] = []
    assert remote_rows.measure_remote_rows(SIZES["tiny"], tmp_path / "remote", said.append) == []
    assert len(said) == 1
    assert told in said[0]


def test_a_ratio_above_one_means_that_we_are_faster() -> None:
    assert Row("restore", 2.0, "recomputing", 6.0).ratio == 3.0
    assert Peak("restore", 105, 100).ratio == 1.05


def test_a_page_without_markers_is_refused_and_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing to replace")
    with pytest.raises(ValueError, match="begin: generated"):
        write_section(Results("tiny", 1, {}, (), ()), page)
    assert page.read_text() == "nothing to replace"


def test_works_are_run_in_turn_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []
    works = {name: (lambda name=name: calls.append(name)) for name in ("a", "b")}
    times = in_turn(works, runs=2, before=lambda: calls.append("-"))
    assert calls == ["-", "a", "-", "b"] * 3
    assert set(times) == {"a", "b"}


@pytest.mark.parametrize("option", ["--dir", "--write"])
def test_a_place_that_does_not_exist_is_one_line_before_anything_is_measured(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", option, str(tmp_path / "absent" / "place")]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [told.err.rstrip("\n")]
    assert f"{option}: there is no directory" in told.err


def test_a_page_that_cannot_be_written_is_one_line_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers")
    assert main(["bench", "--write", str(page)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "begin: generated" in told


def test_the_rows_are_measured_where_no_extra_is_installed() -> None:
    absent = ["redis", "obstore", "cryptography", "zstandard"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "import omlx_cache.tools.bench.run"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
