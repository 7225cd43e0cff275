"""`omlx-cache bench`: what is compared, and what each codec takes and loses."""

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

# Importing it starts what the client of object stores keeps until the process ends.
import kit.remote.engines  # noqa: F401
from kit.output import check_output
from omlx_cache.tools.bench import remote
from omlx_cache.tools.bench.codecs import measure_codecs
from omlx_cache.tools.bench.figures import SIZES, BenchRow, PreparedWork, Results, beside, in_turn
from omlx_cache.tools.bench.report import BEGIN, END, write_section
from omlx_cache_daemon.cli import main
from omlx_cache_storage.remote.engine import ExtraMissing, RemoteError

TINY = SIZES["tiny"]
COMPARED = {
    ("restore", "one memcpy"),
    ("restore", "one memcpy into new memory"),
    ("restore", "one MLX concatenation"),
    ("restore", "raw reads"),
    ("restore", "raw reads into new memory"),
    ("restore", "mlx-lm load_prompt_cache"),
    ("restore", "recomputing them"),
    ("restore", "a restore on the spot"),
    ("restore", "stored dense"),
    ("commit", "one memcpy"),
    ("commit of nothing new after a cold restore", "a commit of everything"),
    ("prefill of 64 tokens in 4 chunks", "the same without a cache"),
    *(("commit and flush", f"bare files, {level}") for level in ("none", "fsync", "full")),
    ("start-up on 40 files", "bare scandir and stat"),
    ("lookup of 1", "the bare SHA-256 chain"),
    ("remote restore", "raw GETs"),
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
    assert {(row["what"].split(",")[0], row["compared_with"]) for row in told["rows"]} >= COMPARED
    assert all(row["ours"] > 0 and row["other"] > 0 for row in told["rows"])
    assert {peak["what"] for peak in told["peaks"]} == {"restore, hot", "restore, cold"}
    before, begin, rest = page.read_text().partition(BEGIN)
    written, end, after = rest.partition(END)
    assert (before, begin, end, after) == ("# Title\n", BEGIN, END, "\nafter\n")
    assert (written.count("| restore, hot |"), "old figures" in written) == (3, False)
    assert platform.node() not in json.dumps(told["machine"])
    assert list(tmp_path.iterdir()) == [page], "the workspace is removed"


def test_a_part_is_measured_by_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    command = ["bench", "disk", "--size", "tiny", "--dir", str(tmp_path)]
    assert main([*command, "--report", str(report)]) == 0
    page = report.read_text()
    for told in (capsys.readouterr().out, page):
        assert "commit and flush, fsync" in told
        assert "restore, hot" not in told
    assert all(name in page for name in ("processor", "memory", "Metal", "virtual machine"))
    assert not any(name in page for name in (str(tmp_path), str(Path.home()), platform.node()))


def test_codecs_take_what_their_formats_say_and_lossless_ones_lose_nothing(tmp_path: Path) -> None:
    found = measure_codecs(replace(TINY, runs=1), tmp_path)
    losses = {loss.codec: loss for loss in found.losses}
    bits = {"dense": 16, "affine8": 8.5, "k8v4": 6.5, "affine4": 4.5, "turbo4": 4.125}
    for name, each in bits.items():
        assert losses[name].bytes_per_token == pytest.approx(2 * 8 * 128 * each / 8)
        assert losses[name].ratio == pytest.approx(16 / each)
    for name, loss in losses.items():
        errors = (loss.key_error, loss.value_error, loss.variation, loss.loud_variation)
        assert all((error == 0) is (name in ("dense", "zstd on disk")) for error in errors)
    # Loud channels hurt group-wise quantisation more than TurboQuant.
    assert losses["turbo4"].loud_variation < losses["affine4"].loud_variation
    assert losses["affine8"].loud_variation < losses["turbo4"].loud_variation
    assert {row.compared_with for row in found.rows} == {"stored dense"}
    assert len(found.rows) == 3 * (len(losses) - 1)


def test_restores_from_remote_stores_stand_beside_their_clients(tmp_path: Path) -> None:
    said: list[str] = []
    found = remote.measure_remote(replace(TINY, runs=1), tmp_path, said.append)
    missing = bool(said)
    kinds = ("file",) if missing else ("file", "redis")
    assert {row.what.split(",")[1].strip() for row in found.rows} >= set(kinds)
    assert all(row.ours > 0 and row.other > 0 and row.limit for row in found.rows)


def test_a_remote_store_that_fails_costs_its_own_rows_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number, error in enumerate((ExtraMissing("pip install redis"), RemoteError("refused"))):

        def refuse(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(remote, "_rows", refuse)
        said: list[str] = []
        assert not remote.measure_remote(TINY, tmp_path / str(number), said.append).rows
        assert str(error) in said[0]


def test_works_are_run_in_turn_and_neither_the_first_round_nor_preparing_counts() -> None:
    calls: list[str] = []
    prepared = PreparedWork(lambda: calls.append("prepare") or "b", calls.append)
    works = {"a": lambda: calls.append("a"), "b": prepared}
    times = in_turn(works, runs=2, before=lambda: calls.append("-"))
    assert calls == ["-", "a", "-", "prepare", "b"] * 3
    assert set(times) == {"a", "b"}


def test_of_ways_to_do_the_same_the_fastest_counts() -> None:
    slow = PreparedWork(lambda: None, lambda _: sum(range(200_000)))
    (limit, peer) = beside("x", slow, 3, limits={"a": [slow, lambda: None]}, peers={"b": [slow]})
    assert (limit.limit, peer.limit) == (True, False)
    assert limit.other < peer.other
    assert BenchRow("restore", 2.0, "recomputing", 6.0).ratio == 3.0


def test_what_cannot_be_written_is_one_line_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers")
    absent = str(tmp_path / "absent" / "place")
    for arguments, said in (
        (("--write", str(page)), "begin: generated"),
        (("--write", absent), "--write: there is no directory"),
        (("--dir", absent), "--dir: there is no directory"),
        (("--report", absent), "--report: there is no directory"),
        (("--report", str(tmp_path)), "Is a directory"),
    ):
        assert main(["bench", *arguments]) == 1
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert said in told.err
    with pytest.raises(ValueError, match="begin: generated"):
        write_section(Results(TINY, {}, ()), page)
    assert page.read_text() == "no markers"


def test_a_disk_without_room_is_left_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=52 * 2**20))
    assert main(["bench", "disk", "--dir", str(tmp_path)]) == 1
    assert "has 52 MiB free, and --size small takes up to 384 MiB" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_rows_are_measured_where_no_extra_is_installed() -> None:
    absent = ["redis", "obstore", "cryptography", "zstandard"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "import omlx_cache.tools.bench.report"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
