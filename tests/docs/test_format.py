"""docs/format.md, read as a stranger would: with nothing but its words, and safetensors."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import xxhash
from safetensors import safe_open

from kit import zoo
from kit.drive import request
from omlx_cache import BlockStore, CacheSettings, PrefixCache

BLOCK = 32
TOKENS = [(3 * i * i - 40) % 256 for i in range(80)]


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """The files that two blocks and a tail of a real model leave."""
    model = zoo.build("qwen3")
    settings = CacheSettings(
        cold_dir=tmp_path / "cold", socket="off", min_free_bytes=0, block_size=BLOCK
    )
    with BlockStore(settings) as store:
        request(model, PrefixCache(model, store), TOKENS)
    return tmp_path / "cold"


def test_names_keys_and_places_are_as_documented(cold_dir: Path) -> None:
    assert (cold_dir / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d17")
    (namespace,) = (path for path in cold_dir.iterdir() if path.is_dir())
    document = json.loads((namespace / "namespace.json").read_text())
    assert document.pop("label").startswith("mlx_lm.models.qwen3")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(b"omlx-cache namespace v1\0" + text.encode())
    assert namespace.name == digest.hexdigest()
    parent = digest.digest()
    for start, stop in ((0, 32), (32, 64), (64, 80)):
        chunk = np.asarray(TOKENS[start:stop], dtype="<i8").tobytes()
        key = hashlib.sha256(parent + chunk).digest()
        tail = "" if stop % BLOCK == 0 else "-t"
        name = f"{key.hex()}-{parent.hex()[:16]}-{stop}-{stop - start}-paged{tail}.safetensors"
        path = namespace / key.hex()[:2] / name
        assert path.exists(), f"no page for {start}..{stop}"
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        parent = key
    assert len(list(cold_dir.rglob("*.safetensors"))) == 3


def test_the_bytes_are_as_documented(cold_dir: Path) -> None:
    for path in cold_dir.rglob("*.safetensors"):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        assert (8 + length) % 16384 == 0
        text = raw[8 : 8 + length].rstrip(b" ")
        header = json.loads(text)
        assert json.dumps(header, separators=(",", ":")).encode() == text
        metadata, payload = header.pop("__metadata__"), raw[8 + length :]
        assert metadata["checksum"] == f"xxh3-128:{xxhash.xxh3_128_hexdigest(payload)}"
        declared = metadata.pop("header_checksum")
        summed = ",".join(json.dumps(part, separators=(",", ":")) for part in (metadata, header))
        assert declared == xxhash.xxh3_64_hexdigest(f"[{summed}]".encode())
        assert max(entry["data_offsets"][1] for entry in header.values()) == len(payload)
        assert metadata["format"] == "1"
        assert path.name.startswith(f"{metadata['key']}-{metadata['parent'][:16]}-")


def test_any_safetensors_reader_opens_a_page(cold_dir: Path) -> None:
    path = next(cold_dir.rglob("*-64-32-paged.safetensors"))
    with safe_open(str(path), framework="numpy") as file:
        assert set(file.keys()) == {"0.keys", "0.values", "1.keys", "1.values"}
        assert file.metadata()["position"] == "64"
        assert file.metadata()["namespace"] == path.parents[1].name
        assert file.get_slice("1.values").get_shape() == [1, 2, BLOCK, 16]
