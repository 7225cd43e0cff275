"""`inspect` reads what it shows, from the directory and behind a running store."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.storage import open_cold
from omlx_cache_daemon.verdict import with_verdict
from omlx_cache_storage.keys import BlockKey, namespace_digest
from omlx_cache_storage.page import Page, PageMeta, TensorSpec

Cli = Callable[..., Any]
_DOCUMENT = {"model_id": "llama"}
_KEY = hashlib.sha256(b"page").hexdigest()
_SERVE = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="64MiB")):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def page_file(tmp_path: Path) -> Path:
    """The file of one dense page in this test's cold directory."""
    meta = PageMeta(
        namespace=namespace_digest(_DOCUMENT),
        key=BlockKey(bytes.fromhex(_KEY)),
        parent=BlockKey(hashlib.sha256(b"parent").digest()),
        group="paged",
        position=256,
        held=256,
        tail=False,
        codec="dense",
        tensors=(TensorSpec("0.keys", "BF16", (1, 2, 256, 8)),),
    )
    tier = open_cold(tmp_path / "cold")
    assert (
        tier.write(Page(meta, bytes(range(256)) * (meta.nbytes // 256)), 10**18, _DOCUMENT)
        == "written"
    )
    return next((tmp_path / "cold").rglob("*.safetensors"))


@pytest.fixture(params=["from the directory", "from a store"])
def source(
    request: pytest.FixtureRequest, page_file: Path, environment: dict[str, str]
) -> Iterator[None]:
    """Nobody, or a store that has indexed the page."""
    if request.param == "from the directory":
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield
    process.communicate(timeout=60)


def _overwrite(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-100:-96] = b"\xff\x00\xff\x00"
    path.write_bytes(raw)


@pytest.mark.usefixtures("source")
def test_inspect_verifies_the_data_and_four_other_bytes_are_damage(
    cli: Cli, page_file: Path
) -> None:
    sound = cli("inspect", _KEY[:8])
    assert sound.code == 0
    assert "data         verified\n" in sound.out
    _overwrite(page_file)
    damaged = cli("inspect", _KEY[:8], "--format", "json")
    assert damaged.code == 1
    (page,) = json.loads(damaged.out)
    assert page["data"] == "damaged"
    assert page["error"].startswith("corrupt: ")
    assert page["tensors"], "what the header says is shown all the same"


def test_a_page_without_a_file_is_not_called_verified() -> None:
    assert with_verdict({"key": "ab"})["data"] == "not verified: not on disk"


def test_a_page_that_is_evicted_meanwhile_is_no_damage(page_file: Path) -> None:
    page_file.unlink()
    page = with_verdict({"key": _KEY, "path": str(page_file)})
    assert page["data"] == "not verified: evicted meanwhile"
    assert "error" not in page
