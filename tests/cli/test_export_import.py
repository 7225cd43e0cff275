"""`omlx-cache export` and `import`: what one machine computed, another restores."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.children import told
from kit.output import check_output
from kit.storage import Story, write_pages
from kit.storage.mounts import small_disk

from .conftest import Cli, Start

EMBED = """
import sys
from kit.output import check_output
from kit.storage import Story
from kit.storage.mounts import small_disk
from omlx_cache import BlockStore, CacheSettings
story = Story("a", nbytes=2**14)
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24)) as store:
    print("ready", flush=True)
    for line in sys.stdin:
        store.refresh()
        print(sum(found is not None for found in store.find_all(story.ids(1, 2, 3))), flush=True)
"""


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Pages of two models."""
    for name, label in (("a", "meta/llama"), ("b", "qwen")):
        story = Story(name, nbytes=2**14)
        write_pages(tmp_path / "cold", story, 1, 2, 3, **story.document, label=label)
    return tmp_path / "cold"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "a.tar"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """An empty directory of another machine."""
    (tmp_path / "here").mkdir(mode=0o700)
    return tmp_path / "here"


def _state(result: Any) -> Any:
    assert result.code == 0, result.err
    document = json.loads(result.out)
    check_output("import" if "dry_run" in document else "export", document)
    return document


@pytest.mark.parametrize(
    ("target", "pages"),
    [
        ([], 6),
        (["meta/llama"], 3),
        ([Story("b").namespace.hex()[:12]], 3),
        ([Story("a", nbytes=2**14).id(2).key.hex()], 2),
        ([Story("a", nbytes=2**14).id(1).key.hex()[:16], "--as", "key"], 1),
    ],
)
def test_a_target_is_exported_alone(
    cli: Cli, cold_dir: Path, archive: Path, here: Path, target: list[str], pages: int
) -> None:
    exported = _state(cli("export", *target, "-o", archive, "--format", "json"))
    assert exported["pages"] == pages
    command = ("import", archive, "--cold-dir", here, "--format", "json")
    looked = _state(cli(*command, "--dry-run"))
    assert (looked["imported_pages"], list(here.iterdir())) == (pages, [])
    assert _state(cli(*command))["imported_pages"] == pages
    assert _state(cli(*command))["present_pages"] == pages
    assert len(list(here.rglob("*.safetensors"))) == pages


def test_a_running_store_finds_what_comes_at_once(
    cli: Cli, start: Start, cold_dir: Path, archive: Path, here: Path
) -> None:
    assert cli("export", "meta/llama", "-o", archive).code == 0
    process = start(OMLX_CACHE_COLD_DIR=str(here))
    assert cli("import", archive).code == 0
    assert told(process) == "3"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_import_killed_anywhere_leaves_whole_pages_and_goes_on(
    cli: Cli,
    cold_dir: Path,
    environment: dict[str, str],
    archive: Path,
    here: Path,
    how: signal.Signals,
) -> None:
    command = [sys.executable, "-m", "omlx_cache_daemon"]
    exporting = [*command, "export", "-o", "-"]
    raw = subprocess.run(exporting, env=environment, capture_output=True, check=True).stdout
    archive.write_bytes(raw)
    with subprocess.Popen(
        [*command, "import", "-", "--cold-dir", str(here)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        # It has so much of a page, and waits for the rest.
        process.stdin.write(raw[: len(raw) // 2])
        process.stdin.flush()
        # The second one is there only when the first has been published, and told.
        while len(list(here.rglob("*.safetensors"))) < 2:
            assert process.poll() is None
        process.send_signal(how)
        said = process.stdout.read()
    assert (b" of 6 pages" in said) == (how == signal.SIGINT) == (process.returncode == 130)
    there = {path.name: path.read_bytes() for path in cold_dir.rglob("*.safetensors")}
    for path in here.rglob("*.safetensors"):
        assert path.read_bytes() == there[path.name]
    result = _state(cli("import", archive, "--cold-dir", here, "--format", "json"))
    assert result["present_pages"] >= 1
    assert result["present_pages"] + result["imported_pages"] == 6
    assert {path.name for path in here.rglob("*.safetensors")} == there.keys()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["export", "nobody", "-o", "x.tar"], 1, "no model and no salt is nobody"),
        (["export", "-o", "-", "--format", "json"], 2, "send that elsewhere"),
        (["export", "-o", "here.txt"], 1, "is there already"),
        (["export", "-o", "/nowhere/x.tar"], 1, "No such file"),
        (["export", "--as", "key", "-o", "x.tar"], 2, "say what to export"),
        (["import", "missing.tar"], 1, "No such file"),
        (
            ["import", "here.txt"],
            1,
            "ends too early: it was cut off, or is no tar archive",
        ),
    ],
)
def test_what_it_cannot_do_it_says(
    cli: Cli,
    cold_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").write_text("no archive")
    cli(*arguments).assert_refused(code, says)
    assert {path.name for path in tmp_path.iterdir()} == {"cold", "here.txt"}


def test_a_full_disk_ends_an_import_between_two_pages(
    cli: Cli, cold_dir: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("export", "meta/llama", "-o", archive).code == 0
    monkeypatch.setenv("OMLX_CACHE_COLD_BYTES", "16MiB")
    monkeypatch.setenv("OMLX_CACHE_MIN_FREE_BYTES", "0")
    keys = [Story("a", nbytes=2**14).id(number).key.hex() for number in (1, 2, 3)]
    with small_disk(tmp_path / "disk", "size=120k") as disk:
        result = cli("import", archive, "--cold-dir", disk.path)
        here = [any(disk.path.rglob(f"{key}-*.safetensors")) for key in keys]
        assert here in ([True, False, False], [True, True, False])
        assert (result.code, f"imported {sum(here)} of 3 pages" in result.out) == (1, True)
        disk.remount("size=2m")
        assert cli("import", archive, "--cold-dir", disk.path).code == 0
        assert all(any(disk.path.rglob(f"{key}-*.safetensors")) for key in keys)


def test_what_the_budget_has_no_room_for_is_counted(
    cli: Cli, cold_dir: Path, archive: Path, here: Path
) -> None:
    assert cli("export", "-o", archive).code == 0
    assert cli("quota", "200KiB", "--yes", "--cold-dir", here).code == 0
    result = cli("import", archive, "--cold-dir", here, "--format", "json")
    assert result.code == 1
    said = json.loads(result.out)
    check_output("import", said)
    left = len(list(here.rglob("*.safetensors")))
    assert said["imported_pages"] - said["lost_pages"] == left
    assert said["refused_pages"] + said["lost_pages"] == 6 - left


def test_what_other_versions_computed_is_taken_in_with_a_warning(
    cli: Cli, tmp_path: Path, archive: Path, here: Path
) -> None:
    # A field that was too large for the file: the digest cannot be compared.
    large = {"extra": {"omitted": "too large"}}
    document = {"format": 1, "software": {"mlx": "0.1", "mlx-lm": "0.2"}, "architecture": "abacus"}
    write_pages(tmp_path / "cold", Story("a", nbytes=4096), 1, **document, **large)
    assert cli("export", "-o", archive).code == 0
    result = cli("import", archive, "--cold-dir", here)
    assert result.code == 0
    assert "mlx 0.1" in result.err
    assert "imported 1 of 1" in result.out
