"""prefill.json, which earlier versions write beside a namespace's document: it goes with that."""

from pathlib import Path

import pytest

from omlx_cache_daemon.changing import remove_namespace
from omlx_cache_storage.cold.catalog import take_inventory
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.keys import BlockKey

_DIGEST = "ab" * 32
_PAGE = f"{'01' * 32}-{'00' * 8}-1-1-paged.safetensors"


def _opened(cold_dir: Path) -> PageFiles:
    """Return the files of a directory as a store finds them that opens it."""
    cold_dir.mkdir(mode=0o700, exist_ok=True)
    files = PageFiles(cold_dir, FileSystem(), "none")
    files.open()
    files.clear_up(take_inventory(cold_dir, files.fs))
    return files


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """A directory with one namespace, as `PageFiles` makes it, and one page's shard."""
    cold = tmp_path / "cold"
    page = cold / _DIGEST / "01" / "page"
    _opened(cold).stage(str(page), 1, {"model": "m"}).close()
    page.unlink()
    return cold


def _write(cold_dir: Path) -> None:
    path = cold_dir / _DIGEST / "prefill.json"
    path.write_text('{"model": "m", "tokens": 45678, "seconds": 12.5}')
    path.chmod(0o600)


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
