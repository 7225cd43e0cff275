"""What version 7f87c96 wrote is read by this one, and what this one writes has the same form.

`data/` holds a cold directory of that version (plain, packed and compressed pages; tails, windows,
recurrent state; budget, pins, ledger), what it restored from it, its keys, and the records of its
ledger for pages that came and went later. `golden.write` made it; it is not written again.

Each test works on a copy of its own. `golden.process` makes the machine's part of a namespace the
same everywhere. A page's bytes, a key and a ledger's record are checked by `docs/format.md` too, by
code that shares nothing with the product.
"""

import importlib.util
import json
import os
import platform
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.arithmetic import Arithmetic, tokens_of
from contract.driving import Child, ask, environment
from golden import pagefile
from golden.cases import BLOCK, CASES, DATA, LATER, PLAIN, lookup, settings
from golden.ledger import append, parse
from omlx_cache import BlockStore, CacheSettings, PrefixCache

EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())
HAS_ZSTD = any(
    importlib.util.find_spec(name.split(".")[0]) and importlib.util.find_spec(name)
    for name in ("zstandard", "compression.zstd")
)
ROUNDS_ALIKE = platform.machine() == "x86_64"
"""Packing rounds; another processor may round the last bit otherwise."""


def unpack(archive: str, directory: Path) -> Path:
    """Return a directory as the old version left it, with its times to the nanosecond."""
    directory.mkdir(exist_ok=True, mode=0o700)
    with tarfile.open(DATA / archive) as tar:
        tar.extractall(directory, filter="data")
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        stamp = EXPECTED["files"].get(str(path.relative_to(directory)))
        if stamp is not None:
            os.utime(path, ns=(stamp, stamp))
    return directory


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    home = tmp_path_factory.mktemp("golden")
    given = json.dumps(settings(home / "cold"))
    env = environment(OMLX_CACHE_RUNTIME_DIR=str(home / "run"))
    child = Child(["-m", "golden.process", given], env=env, log=home / "log")
    assert child.hear() == {"ready": True}
    yield child
    assert child.end() == 0


@pytest.fixture
def use(process: Child) -> Callable[..., Child]:
    """Have the process use a directory, with other settings perhaps."""

    def reopen(directory: Path, **fields: Any) -> Child:
        told = process.ask({"do": "reopen", "settings": settings(directory, **fields)})
        assert told["closed"]
        return process

    return reopen


@pytest.mark.parametrize("name", CASES)
def test_what_the_old_version_wrote_is_restored(
    name: str, use: Callable[..., Child], tmp_path: Path
) -> None:
    given, case = CASES[name]
    right = EXPECTED["cases"][name]
    directory = unpack("directory.tar.gz", tmp_path / "cold")
    files = sorted(directory.rglob("*.safetensors"))
    child = use(directory, **given)
    found = child.ask(lookup(case))
    told = child.ask({**case, "commit": False})
    assert sorted(directory.rglob("*.safetensors")) == files
    if name == "zstd" and not HAS_ZSTD:
        assert told["reason"] == "undecodable"
        assert (told["cached"], told["wrong"]) == (0, "")
        return
    assert found["pages"] == right["pages"]
    assert (told["cached"], told["reason"]) == (right["cached"], right["reason"])
    assert told.get("wrong", "") == ""
    if case["do"] == "encoded" and ROUNDS_ALIKE:
        assert told["digest"] == right["digest"]


def test_budget_and_pins_of_the_old_version_are_obeyed(
    use: Callable[..., Child], tmp_path: Path
) -> None:
    directory = unpack("directory.tar.gz", tmp_path / "cold")
    child = use(directory, cold_bytes="64MiB")
    assert child.ask({"do": "stats"})["limit_bytes"] == 7 << 20
    child.tell({"do": "fill", "first": 1000, "last": 1060, "count": 120})
    while "done" not in (told := child.hear()):
        assert told["wrong"] == ""
    stats = child.ask({"do": "stats"})
    assert stats["evicted_pages"] > 0
    assert stats["bytes"] <= 7 << 20
    # Older than everything that came, and pinned.
    told = child.ask({**CASES["salt"][1], "commit": False})
    assert (told["cached"], told["wrong"]) == (40, "")
    assert child.ask(lookup(CASES["extra"][1]))["cached"] == 0


def test_this_version_writes_the_old_ones_files_byte_for_byte(
    use: Callable[..., Child], tmp_path: Path
) -> None:
    old = unpack("directory.tar.gz", tmp_path / "old")
    new = tmp_path / "new"
    for name, (given, case) in CASES.items():
        if name != "zstd":
            told = use(new, **given).ask(case)
            assert told["flushed"]
            assert told.get("wrong", "") == ""
    use(tmp_path / "other")
    compressed = {key for key, *_ in EXPECTED["cases"]["zstd"]["pages"]}
    for path in sorted(old.rglob("*.safetensors")):
        if path.name.split("-")[0] in compressed:
            continue
        twin = new / path.relative_to(old)
        if path.name.split("-")[4].startswith("paged"):
            assert twin.exists()
        codec = pagefile.check(path)["__metadata__"]["codec"]
        if twin.exists() and (codec == "dense" or ROUNDS_ALIKE):
            assert twin.read_bytes() == path.read_bytes()
    for document in old.glob("*/namespace.json"):
        twin = new / document.relative_to(old)
        assert json.loads(twin.read_text()) == json.loads(document.read_text())


def test_keys_and_namespaces_follow_the_documented_rules(tmp_path: Path) -> None:
    directory = unpack("directory.tar.gz", tmp_path / "cold")
    owners = {}
    for document in directory.glob("*/namespace.json"):
        namespace = pagefile.namespace_of(json.loads(document.read_text()))
        assert document.parent.name == namespace.hex()
        for path in document.parent.rglob("*.safetensors"):
            owners[path.name.split("-")[0]] = namespace
            pagefile.check(path)
    for name, (_, case) in CASES.items():
        tokens = tokens_of(case["seed"], case["count"])
        pages = EXPECTED["cases"][name]["pages"]
        chain = pagefile.chain_of(owners[pages[0][0]], tokens, BLOCK)
        for key, group, _, stop in pages:
            assert chain[stop].hex() == key, (name, group, stop)


@pytest.mark.parametrize("kinds", [("kv", "kv"), ("kv", "state", "keep")], ids="-".join)
def test_what_this_version_writes_on_this_machine_follows_the_same_rules(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    model, tokens = Arithmetic(kinds), tokens_of(1, 5 * BLOCK + 3)
    with BlockStore(CacheSettings(**settings(tmp_path / "cold"))) as store:
        ask(model, PrefixCache(model, store), tokens)
        assert store.flush(30)
    (document,) = tmp_path.glob("cold/*/namespace.json")
    chain = pagefile.chain_of(bytes.fromhex(document.parent.name), tokens, BLOCK)
    assert pagefile.namespace_of(json.loads(document.read_text())).hex() == document.parent.name
    files = sorted(document.parent.rglob("*.safetensors"))
    assert len(files) >= 6
    added = set()
    for path in files:
        metadata = pagefile.check(path)["__metadata__"]
        assert chain[int(metadata["position"])].hex() == metadata["key"]
        added.add((metadata["namespace"], metadata["key"], metadata["group"]))
    said = parse((tmp_path / "cold/ledger").read_bytes()).documents
    pages = {(r[4].hex(), r[5].hex(), r[6]) for r in said if r[0] == 1}
    assert pages == added


def test_the_ledger_of_the_old_version_can_be_read(tmp_path: Path) -> None:
    directory = unpack("directory.tar.gz", tmp_path / "cold")
    ledger = parse((directory / "ledger").read_bytes())
    names = {path.name.split("-")[0] for path in directory.rglob("*.safetensors")}
    assert {record[5].hex() for record in ledger.documents if record[0] == 1} <= names


def test_a_running_store_follows_what_the_old_version_says_in_the_ledger(
    use: Callable[..., Child], tmp_path: Path
) -> None:
    directory = unpack("directory.tar.gz", tmp_path / "cold")
    child = use(directory, **PLAIN)
    assert child.ask(lookup(LATER))["cached"] == 0
    before = set(directory.rglob("*"))
    unpack("later.tar.gz", directory)
    files = [path for path in set(directory.rglob("*")) - before if path.is_file()]
    assert child.ask(lookup(LATER))["cached"] == 0
    append(directory / "ledger", [bytes.fromhex(record) for record in EXPECTED["added"]])
    told = child.ask({**LATER, "commit": False})
    assert (told["cached"], told["wrong"]) == (40, "")
    for path in files:
        path.unlink()
    append(directory / "ledger", [bytes.fromhex(record) for record in EXPECTED["removed"]])
    # A look-up that finds all asks nobody; one that ends short reads the ledger.
    assert child.ask(lookup({**LATER, "seed": 21}))["cached"] == 0
    assert child.ask(lookup(LATER))["cached"] == 0
    told = child.ask(LATER)
    assert (told["cached"], told["wrong"], told["flushed"]) == (0, "", True)
    assert child.ask(lookup(LATER))["cached"] == 40
