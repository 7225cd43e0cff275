"""A namespace's document: any file gives a map, and what is a map is written as it was read."""

import json
from pathlib import Path
from random import Random

from omlx_cache_storage.cold.budget import MOST_BYTES
from omlx_cache_storage.cold.small_files import (
    MAX_DOCUMENT_BYTES,
    encode_document,
    has_fields,
    parse_budget,
    parse_reuse,
    read_document,
)
from omlx_cache_storage.documents import FORMAT, label, salt, versions
from omlx_cache_storage.eviction.ages import BUCKETS

from .mutate import nested, spoil_bytes, spoil_value
from .page_file import OneFile
from .target import KIB, MIB, Target

SAMPLE = {
    "block_size": 256, "codec": "dense", "extra": {"quantized_kv_start": "5000"},
    "format": 1, "label": "tiny", "layout": '[["0","KVCache",{}]]', "model": "ab" * 32,
    "salt": "text:" + "cd" * 32, "software": {"mlx": "0.30.1", "mlx-lm": "0.29.0"},
}  # fmt: skip

AGES = {"version": 1, "uses": [2.5] * BUCKETS, "seen": 3_000, "patience_seconds": 25.4}
REUSE = {"version": 1, "memory": AGES, "disk": AGES}
BUDGET = {
    "version": 1, "bytes": 5 << 30, "set_by": "store",
    "shares": {"salt": {"*": {"fraction": 0.25}}, "model": {"tiny": {"bytes": 1 << 30}}},
}  # fmt: skip


def one(data: bytes) -> bool:
    document = read_document(Path("namespace.json"), OneFile(data))
    assert isinstance(document, dict)
    assert isinstance(label(document), str)
    assert len(salt(document)) <= 256
    assert versions(document) == {} or FORMAT in versions(document)
    for learned in parse_reuse(document):
        assert learned is None or 0 <= learned.patience_seconds < 1e7
    budget = parse_budget(document)
    assert budget is None or 0 <= budget.nbytes <= MOST_BYTES
    assert budget is None or isinstance(budget.shares, dict)
    has_fields(document, {"model": "ab" * 32, "salt": None})
    if not document or len(data) > 2 * KIB:
        # Larger ones are read alike, and indenting what is nested takes its square.
        return bool(document)
    raw = encode_document(document)
    assert len(raw) <= MAX_DOCUMENT_BYTES
    again = read_document(Path("namespace.json"), OneFile(raw))
    assert has_fields(again, {name: document[name] for name in again})
    return True


def vary(rng: Random, sample: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((b"[", b'{"a":', b"[{", b"9", b"[],")) * rng.choice((1000, 100_000))
    if kind < 0.2:
        text = json.dumps({**SAMPLE, "extra": nested(rng.choice((20, 900)), dict)})
        return text.encode()
    value = spoil_value(rng, json.loads(sample))
    encoding = rng.choice(("utf-8", "utf-8", "utf-16", "utf-32", "utf-8-sig"))
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return spoil_bytes(rng, text.encode(encoding, "surrogatepass")) if kind > 0.9 else (
        text.encode(encoding, "surrogatepass"))  # fmt: skip


def samples() -> list[bytes]:
    return [
        encode_document(SAMPLE),
        encode_document({}),
        encode_document(REUSE),
        encode_document(BUDGET),
    ]


TARGET = Target("document", samples, vary, one, constant=80 * MIB)
