"""prefill.json: written beside a namespace's document, read by the next process, gone with it."""

import json
from pathlib import Path

import pytest

from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.inventory import clear_up, take_inventory
from omlx_cache_storage.cold.rates import KeptRate, read_rates, write_rate
from omlx_cache_storage.cold.records import SMALL_FILE_BYTES
from omlx_cache_storage.cold.removal import remove_namespace
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.work import PrefillRate

_DIGEST = "ab" * 32
_PAGE = f"{'01' * 32}-{'00' * 8}-1-1-paged.safetensors"
_KEPT = KeptRate("cd" * 32, PrefillRate(45_678, 12.5))


def _opened(cold_dir: Path) -> PageFiles:
    """Return the files of a directory as a store finds them that opens it."""
    cold_dir.mkdir(mode=0o700, exist_ok=True)
    files = PageFiles(cold_dir, FileSystem(), "none")
    files.open()
    clear_up(files, take_inventory(cold_dir, files.fs, lambda found, name: None))
    return files


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """A directory with one namespace, as `PageFiles` makes it, and one page's shard."""
    cold = tmp_path / "cold"
    page = cold / _DIGEST / "01" / "page"
    _opened(cold).stage(str(page), 1, {"model": "m"}).close()
    page.unlink()
    return cold


def _write(cold_dir: Path, kept: KeptRate = _KEPT) -> bool:
    return write_rate(cold_dir, _DIGEST, kept, TemporaryNames())


def test_a_rate_is_found_again_and_replaced(cold_dir: Path) -> None:
    assert _write(cold_dir)
    assert list(read_rates(cold_dir)) == [_KEPT]
    other = KeptRate("ef" * 32, PrefillRate(7, 1.5))
    assert _write(cold_dir, other)
    assert list(read_rates(cold_dir)) == [other]
    names = sorted(path.name for path in (cold_dir / _DIGEST).iterdir())
    assert names == ["01", "namespace.json", "prefill.json"]
    assert (cold_dir / _DIGEST / "prefill.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((cold_dir / _DIGEST / "namespace.json").read_text()) == {"model": "m"}


def test_a_namespace_that_is_not_on_the_disk_is_not_made(cold_dir: Path) -> None:
    assert not write_rate(cold_dir, "12" * 32, _KEPT, TemporaryNames())
    (cold_dir / _DIGEST / "namespace.json").unlink()
    assert not _write(cold_dir)
    assert [path.name for path in cold_dir.iterdir() if path.is_dir()] == [_DIGEST]


def test_a_disk_that_refuses_leaves_the_rate_from_before(cold_dir: Path) -> None:
    class Full(FileSystem):
        def publish(self, temporary: object, final: object) -> None:
            raise OSError(28, "no space")

    assert _write(cold_dir)
    with pytest.raises(OSError, match="no space"):
        write_rate(cold_dir, _DIGEST, KeptRate("m", PrefillRate(1, 1.0)), TemporaryNames(), Full())
    assert list(read_rates(cold_dir)) == [_KEPT]
    assert not [p for p in (cold_dir / _DIGEST).iterdir() if p.name.startswith(".tmp")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"model": "m", "tokens": 0, "seconds": 1}',
        '{"model": "m", "tokens": true, "seconds": 1}',
        '{"model": "m", "tokens": 1.5, "seconds": 1}',
        '{"model": "m", "tokens": 10, "seconds": 0}',
        '{"model": "m", "tokens": 10, "seconds": -1}',
        '{"model": "m", "tokens": 10, "seconds": NaN}',
        '{"model": "m", "tokens": 10, "seconds": Infinity}',
        '{"model": "m", "tokens": 10, "seconds": 1e-300}',
        '{"model": "m", "tokens": 1e400, "seconds": 1}',
        '{"model": "m", "tokens": ' + "9" * 400 + ', "seconds": 1}',
        '{"model": "m", "tokens": 10, "seconds": ' + "9" * 400 + "}",
        '{"model": 5, "tokens": 10, "seconds": 1}',
        '{"tokens": 10, "seconds": 1}',
    ],
)
def test_what_cannot_have_been_measured_is_no_rate(cold_dir: Path, text: str) -> None:
    path = cold_dir / _DIGEST / "prefill.json"
    path.write_text(text)
    path.chmod(0o600)
    assert list(read_rates(cold_dir)) == []


def test_a_rate_goes_with_its_namespace(cold_dir: Path) -> None:
    _write(cold_dir)
    (cold_dir / _DIGEST / "01" / _PAGE).touch(0o600)
    remove_namespace(cold_dir, BlockKey(bytes.fromhex(_DIGEST)))
    assert not (cold_dir / _DIGEST).exists()


def test_a_rate_alone_is_deleted_when_a_store_opens_the_directory(cold_dir: Path) -> None:
    _write(cold_dir)
    (cold_dir / _DIGEST / "01").rmdir()
    _opened(cold_dir)
    assert not (cold_dir / _DIGEST).exists()


def test_a_rate_counts_as_taken(cold_dir: Path) -> None:
    (cold_dir / _DIGEST / "01" / _PAGE).touch(0o600)
    before = _opened(cold_dir)
    _write(cold_dir)
    after = _opened(cold_dir)
    assert after.overhead_bytes == before.overhead_bytes, "it may come at any time"
    nothing = _opened(cold_dir.with_name("empty"))
    # With the directory, its document and the shard.
    assert after.overhead_bytes - nothing.overhead_bytes >= 4 * SMALL_FILE_BYTES
