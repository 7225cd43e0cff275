"""A page whose file is damaged in any way is a miss with a reason, never a wrong byte and never an
exception; what lies before it is restored, and the next commit stores it again."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.arithmetic import DENSE, HYBRID, WINDOWED, Arithmetic, tokens_of
from contract.driving import BLOCK, ask, pages
from omlx_cache import BlockStore, PrefixCache

Open = Callable[..., BlockStore]
TOKENS = tokens_of(1, 4 * BLOCK - 1)


def flip(at: float) -> Callable[[Path, list[Path]], None]:
    """Change one bit at a part of the file's length."""

    def damage(path: Path, _: list[Path]) -> None:
        data = bytearray(path.read_bytes())
        data[min(int(at * len(data)), len(data) - 1)] ^= 0x10
        path.write_bytes(data)

    return damage


def cut(keep: float) -> Callable[[Path, list[Path]], None]:
    return lambda path, _: os.truncate(path, int(keep * path.stat().st_size))


def swap(path: Path, others: list[Path]) -> None:
    other = next(one for one in others if one != path and one.stat().st_size == path.stat().st_size)
    mine = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(mine)


def longer(path: Path, _: list[Path]) -> None:
    with path.open("ab") as file:
        file.write(b"\0" * 16)


def foreign(path: Path, _: list[Path]) -> None:
    header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")


def link(path: Path, others: list[Path]) -> None:
    other = next(one for one in others if one != path)
    path.unlink()
    path.symlink_to(other)


def folder(path: Path, _: list[Path]) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path, _: list[Path]) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


DAMAGES = {
    "length": flip(0.0),
    "header": flip(0.002),
    "padding": flip(0.2),
    "payload": flip(0.9),
    "last byte": flip(1.0),
    "empty": cut(0.0),
    "half": cut(0.5),
    "one byte short": cut(0.9999),
    "longer": longer,
    "swapped": swap,
    "foreign": foreign,
    "gone": lambda path, _: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("running", [True, False], ids=["under a store", "before a start"])
def test_what_lies_before_the_damage_is_restored_and_the_rest_stored_again(
    damage: Callable[[Path, list[Path]], None], running: bool, open_store: Open, directory: Path
) -> None:
    model = Arithmetic()
    store = open_store(hot_bytes=0)
    ask(model, PrefixCache(model, store), TOKENS)
    assert store.flush(30)
    if not running:
        assert store.close()
    found = pages(directory)
    assert len(found) == 4
    damage(found[1], found)
    if not running:
        store = open_store(hot_bytes=0)
    cache = PrefixCache(model, store)
    turn = ask(model, cache, TOKENS)
    assert turn.wrong == ""
    assert turn.cached <= BLOCK
    assert turn.reason
    assert store.flush(30)
    # Two files are wrong after a swap, and the second is found when the first is right again.
    ask(model, cache, TOKENS)
    assert store.flush(30)
    assert store.close()
    again = ask(model, PrefixCache(model, open_store(hot_bytes=0)), TOKENS)
    assert (again.cached, again.wrong) == (len(TOKENS) - 1, "")


@pytest.mark.parametrize("put", [link, folder, pipe])
@pytest.mark.parametrize("running", [True, False], ids=["under a store", "before a start"])
def test_what_is_no_file_in_a_pages_place_is_not_read(
    put: Callable[[Path, list[Path]], None], running: bool, open_store: Open, directory: Path
) -> None:
    model = Arithmetic()
    store = open_store(hot_bytes=0)
    ask(model, PrefixCache(model, store), TOKENS)
    assert store.flush(30)
    if not running:
        assert store.close()
    found = pages(directory)
    put(found[1], found)
    if not running:
        store = open_store(hot_bytes=0)
    cache = PrefixCache(model, store)
    for _ in range(2):
        turn = ask(model, cache, TOKENS)
        assert turn.wrong == ""
        store.flush(30)
    assert ask(model, cache, tokens_of(2, 100)).wrong == ""


@pytest.mark.parametrize("kinds", [DENSE, HYBRID, WINDOWED], ids="-".join)
def test_every_page_of_every_kind_may_be_damaged(
    kinds: tuple[str, ...], open_store: Open, directory: Path, tmp_path: Path
) -> None:
    model = Arithmetic(kinds)
    store = open_store()
    ask(model, PrefixCache(model, store), [*TOKENS, 5])
    assert store.close()
    shutil.copytree(directory, tmp_path / "sound")
    for number in range(len(pages(directory))):
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "sound", directory)
        found = pages(directory)
        flip(0.97)(found[number], found)
        store = open_store(hot_bytes=0)
        turn = ask(model, PrefixCache(model, store), [*TOKENS, 5])
        assert turn.wrong == ""
        assert turn.cached < 4 * BLOCK
        assert store.close()


def test_strange_things_in_the_directory_are_left_alone(open_store: Open, directory: Path) -> None:
    model = Arithmetic()
    store = open_store()
    ask(model, PrefixCache(model, store), TOKENS)
    assert store.close()
    shard = pages(directory)[0].parent
    (directory / "notes.txt").write_text("mine")
    (shard / "notes.txt").write_text("mine")
    (shard / "model.safetensors").write_bytes(b"not a page")
    (directory / "photos").mkdir()
    (directory / "photos" / "a.jpg").write_bytes(b"mine")
    store = open_store(hot_bytes=0)
    cache = PrefixCache(model, store)
    turn = ask(model, cache, TOKENS)
    assert (turn.cached, turn.wrong) == (len(TOKENS) - 1, "")
    assert cache.clear() == 4
    assert store.close()
    assert (directory / "notes.txt").read_text() == "mine"
    assert (directory / "photos" / "a.jpg").read_bytes() == b"mine"
    assert (shard / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["ledger", "budget.json", "namespace.json", "CACHEDIR.TAG"])
@pytest.mark.parametrize("content", [b"", b"\xff\0garbage", None], ids=["empty", "garbage", "gone"])
def test_the_files_beside_the_pages_may_be_damaged(
    name: str, content: bytes | None, open_store: Open, directory: Path
) -> None:
    model = Arithmetic()
    store = open_store()
    ask(model, PrefixCache(model, store), TOKENS)
    assert store.close()
    (path,) = directory.rglob(name)
    path.unlink() if content is None else path.write_bytes(content)
    store = open_store(hot_bytes=0)
    cache = PrefixCache(model, store)
    turn = ask(model, cache, TOKENS)
    assert (turn.cached, turn.wrong) == (len(TOKENS) - 1, "")
    ask(model, cache, tokens_of(2, 100))
    assert store.flush(30)
