"""A page file, a key and a namespace as `docs/format.md` describes them, by that page alone."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import safe_open


def key_of(parent: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.sha256(parent + np.array(tokens, dtype="<i8").tobytes()).digest()


def namespace_of(document: Mapping[str, Any]) -> bytes:
    """The digest of a `namespace.json`, of which the label is no part."""
    parts = {name: value for name, value in document.items() if name != "label"}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(b"omlx-cache namespace v1\0" + text.encode()).digest()


def chain_of(namespace: bytes, tokens: Sequence[int], block: int) -> dict[int, bytes]:
    """The key of every position of a sequence."""
    parent, keys = namespace, {}
    for start in range(0, len(tokens), block):
        stops = range(start + 1, min(start + block, len(tokens)) + 1)
        keys |= {stop: key_of(parent, tokens[start:stop]) for stop in stops}
        parent = keys[stops[-1]]
    return keys


def check(path: Path) -> dict[str, Any]:
    """Return a page file's header; fails for whatever the format does not allow."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % 16_384 == 0
    assert 8 + length <= 1 << 20
    text = data[8 : 8 + length].decode().rstrip(" ")
    header = json.loads(text)
    assert text == json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    assert next(iter(header)) == "__metadata__"
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    metadata = dict(header["__metadata__"])
    payload = data[8 + length :]
    end = 0
    for entry in tensors.values():
        assert entry["data_offsets"][0] == end
        end = entry["data_offsets"][1]
    assert end == len(payload)
    assert metadata["checksum"] == f"xxh3-128:{xxhash.xxh3_128_hexdigest(payload)}"
    right = metadata.pop("header_checksum")
    both = f"[{_compact(metadata)},{_compact(tensors)}]"
    assert right == xxhash.xxh3_64_hexdigest(both.encode())
    key, parent, position, tokens, group, *tail = path.name.removesuffix(".safetensors").split("-")
    assert metadata["format"] == "1"
    assert (metadata["key"], metadata["parent"][:16]) == (key, parent)
    assert (metadata["position"], metadata["tokens"]) == (position, tokens)
    assert (metadata["group"], metadata["tail"]) == (group, str(len(tail)))
    assert path.parent.name == key[:2]
    assert path.parent.parent.name == metadata["namespace"]
    with safe_open(path, "np") as opened:
        assert set(opened.keys()) == set(tensors)
        assert opened.metadata() == header["__metadata__"]
    return header


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
