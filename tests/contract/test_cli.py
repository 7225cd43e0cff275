"""The command line, by its exit codes and its JSON: what it says of a running store, of a
directory, and of itself. Prose is nobody's contract.

Of JSON documents these names are fixed: `stats` has those of `Stats.to_dict`; a row of `ls` has
`namespace`, `label`, `pages` and `bytes`; `ps` has `pid`; `doctor` has `findings` and `errors`;
`config` has `settings`, each with its `value`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.arithmetic import Arithmetic, tokens_of
from contract.driving import BLOCK, Child, ask, environment, pages, settings
from kit import forks
from omlx_cache import BlockStore, PrefixCache

COUNT = 3 * BLOCK + 5


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A private directory whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix=f"oc-{os.getpid()}-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def cli(_forking: None, runtime: Path, directory: Path) -> Cli:
    """Run `omlx-cache` with this test's stores and directory only."""

    def run(*arguments: str, **variables: str) -> Result:
        given = {"OMLX_CACHE_RUNTIME_DIR": str(runtime), "OMLX_CACHE_COLD_DIR": str(directory)}
        done = forks.run(["omlx_cache", *arguments], environment(**{**given, **variables}))
        assert "Traceback" not in done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def fill(directory: Path, **fields: Any) -> None:
    model = Arithmetic()
    with BlockStore(settings(directory, **fields)) as store:
        cache = PrefixCache(model, store, model_id="org/tiny")
        ask(model, cache, tokens_of(1, COUNT), salt="tenant")
        ask(model, cache, tokens_of(2, COUNT))
        assert store.flush(30)


def test_a_running_store_is_seen(
    cli: Cli, directory: Path, runtime: Path, child: Callable[..., Child]
) -> None:
    given = {"cold_dir": str(directory), "block_size": BLOCK, "hot_bytes": "8MiB"}
    more = {"min_free_bytes": 0, "cold_bytes": "64MiB", "durability": "none"}
    arguments = ("-m", "contract.worker", json.dumps({**given, **more}))
    store = child(*arguments, OMLX_CACHE_RUNTIME_DIR=str(runtime))
    assert store.hear() == {"ready": True}
    for cached in (0, COUNT - 1):
        assert store.ask({"do": "ask", "seed": 1, "count": COUNT})["cached"] == cached
    pid = store.process.pid
    (row,) = cli("ps", "--format", "json").json
    assert row["pid"] == pid
    stats = cli("stats", "--format", "json")
    assert stats.code == 0
    told = stats.json
    assert (told["hot"]["pages"], told["cold"]["pages"]) == (4, 4)
    assert told["requests"]["sessions"] == 2
    assert told["requests"]["restored_tokens"] == COUNT - 1
    (one,) = cli("ls", "--format", "json").json
    assert (one["label"], one["pages"]) == ("worker", 4)
    listed = cli("ls", one["namespace"], "--format", "json")
    assert listed.code == 0
    for path in pages(directory):
        assert path.name.split("-")[0] in listed.out
    here = cli("config", "--format", "json").json["settings"]
    assert here["block_size"]["value"] == BLOCK
    assert here["hot_bytes"]["value"] == 8 << 20
    why = cli("why", "--format", "json")
    assert why.code == 0
    assert f"{COUNT - 1}" in why.out
    assert cli("doctor", "--format", "json").json["errors"] == 0
    assert cli("rm", one["namespace"], "--yes").code == 0
    assert not pages(directory)
    assert store.ask({"do": "ask", "seed": 1, "count": COUNT})["cached"] == 0
    assert store.end() == 0


def test_a_directory_that_nobody_uses_is_listed_and_cleared(cli: Cli, directory: Path) -> None:
    fill(directory)
    rows = cli("ls", "--format", "json").json
    assert sorted(row["pages"] for row in rows) == [4, 4]
    assert {row["label"] for row in rows} == {"org/tiny"}
    assert sum(row["bytes"] for row in rows) == sum(
        p.stat().st_blocks * 512 for p in pages(directory)
    )
    assert cli("rm", "tenant", "--yes").code == 0
    assert [row["pages"] for row in cli("ls", "--format", "json").json] == [4]
    assert len(pages(directory)) == 4
    assert cli("rm", "nobody", "--yes").code == 1
    assert cli("rm", "org/tiny", "--yes").code == 0
    assert not pages(directory)


def test_an_archive_takes_pages_to_another_directory(
    cli: Cli, directory: Path, tmp_path: Path
) -> None:
    fill(directory)
    archive, other = tmp_path / "pages.tar", tmp_path / "other"
    assert cli("export", "-o", str(archive)).code == 0
    assert archive.stat().st_mode & 0o777 == 0o600
    assert cli("import", str(archive), OMLX_CACHE_COLD_DIR=str(other)).code == 0
    assert {path.name for path in pages(other)} == {path.name for path in pages(directory)}
    model = Arithmetic()
    with BlockStore(settings(other)) as store:
        turn = ask(model, PrefixCache(model, store), tokens_of(1, COUNT), salt="tenant")
        assert (turn.cached, turn.wrong) == (COUNT - 1, "")
    torn = tmp_path / "torn.tar"
    torn.write_bytes(archive.read_bytes()[:50_000])
    assert cli("import", str(torn), OMLX_CACHE_COLD_DIR=str(tmp_path / "third")).code == 1


def test_the_doctor_finds_damage_and_mends_it(cli: Cli, directory: Path) -> None:
    fill(directory)
    assert cli("doctor", "--format", "json").json["errors"] == 0
    path = pages(directory)[0]
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    sick = cli("doctor", "--format", "json")
    assert sick.code == 1
    assert sick.json["errors"] == 1
    assert len(sick.json["findings"]) >= 1
    assert cli("doctor", "--fix").code == 0
    assert not path.exists()
    assert cli("doctor", "--format", "json").json["errors"] == 0
    assert len(pages(directory)) == 7


def test_settings_say_where_they_come_from(cli: Cli) -> None:
    told = cli("config", "--format", "json", OMLX_CACHE_BLOCK_SIZE="64").json["settings"]
    assert told["block_size"]["value"] == 64
    assert cli("config", OMLX_CACHE_BLOCK_SIZE="7").code == 78
    assert cli("config", OMLX_CACHE_BLOKC_SIZE="64").code == 78


def test_what_cannot_be_done_has_an_exit_code_and_one_line(cli: Cli, tmp_path: Path) -> None:
    for arguments, code in [
        (["--help"], 0),
        (["--version"], 0),
        (["stats", "--help"], 0),
        (["nonsense"], 2),
        (["stats", "--nonsense"], 2),
        (["stats"], 69),
        (["import", str(tmp_path / "nothing.tar")], 1),
        (["size", str(tmp_path / "nothing")], 1),
    ]:
        done = cli(*arguments)
        assert done.code == code, (arguments, done)
        assert bool(done.out) == (code == 0)
        assert bool(done.err) == (code != 0)


def test_a_models_memory_is_computed_from_its_configuration(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 64,
                "num_hidden_layers": 3,
                "intermediate_size": 128,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "rms_norm_eps": 1e-5,
                "vocab_size": 256,
                "torch_dtype": "bfloat16",
            }
        )
    )
    done = cli("size", str(config), "--context", "1024", "--format", "json")
    assert done.code == 0
    assert str(3 * 2 * 2 * 16 * 2) in done.out


def test_the_package_is_imported_without_mlx() -> None:
    code = "import sys, omlx_cache; sys.exit(any(n in sys.modules for n in ('mlx', 'mlx_lm')))"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0
