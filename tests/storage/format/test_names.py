"""File names say what a page is, in exactly one way."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.storage import Story
from omlx_cache_storage.cold.catalog import walk
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.format.names import PageName, format_name, parse_name
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

NAMES = st.builds(
    PageName,
    st.builds(
        PageId,
        (st.binary(min_size=16, max_size=16) | st.binary(min_size=32, max_size=32)).map(BlockKey),
        st.from_regex(r"[a-z0-9]{1,40}", fullmatch=True),
    ),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 10**15 - 1),
    st.integers(0, 10**15 - 1),
    st.booleans(),
)
KEY = "ab" * 32
GOOD = f"{KEY}-{'cd' * 8}-256-256-paged.safetensors"


@given(NAMES)
def test_a_name_is_read_back_as_it_was(name: PageName) -> None:
    assert parse_name(format_name(name)) == name


@given(st.data())
def test_a_name_with_a_changed_character_is_itself_or_no_page(data: st.DataObject) -> None:
    """Whatever is read out of a name leads back to the same file."""
    index = data.draw(st.integers(0, len(GOOD) - 1))
    changed = GOOD[:index] + data.draw(st.characters()) + GOOD[index + 1 :]
    parsed = parse_name(changed)
    assert parsed is None or format_name(parsed) == changed


@pytest.mark.parametrize(
    "name",
    [
        "",
        "namespace.json",
        ".DS_Store",
        ".tmp-12-ab-0",
        GOOD.upper(),
        GOOD + "\n",
        GOOD.replace("-256-256-", "-0256-256-"),
        GOOD.replace("-256-256-", "-\u0662\u0665\u0666-256-"),
        GOOD.replace("-256-256-", "--256-256-"),
        GOOD.replace("-256-256-", "-1" + "0" * 15 + "-256-"),
        GOOD.replace("paged", "../paged"),
        GOOD.replace("paged", "a" * 41),
        GOOD.replace("paged", "paged-x"),
        GOOD.replace(KEY, KEY[:48]),
        GOOD.replace(".safetensors", ".json"),
        "._" + GOOD,
    ],
)
def test_foreign_names_are_no_pages(name: str) -> None:
    assert parse_name(name) is None


def test_files_in_the_wrong_place_are_passed_over(tmp_path: Path) -> None:
    story = Story()
    name = format_name(PageName(story.id(1), bytes(8), 16, 16, False))
    shard = story.id(1).key[:1].hex()
    right = tmp_path / story.namespace.hex() / shard
    places = [
        right,
        tmp_path / story.namespace.hex() / ("00" if shard != "00" else "11"),
        tmp_path / story.namespace.hex() / "abc",
        tmp_path / story.namespace.hex().upper() / shard,
        tmp_path / ("zz" * 32) / shard,
        tmp_path / shard,
    ]
    for place in places:
        place.mkdir(parents=True)
        (place / name).write_bytes(b"x")
    (right / "notes.txt").write_bytes(b"x")
    (right / format_name(PageName(story.id(1), bytes(8), 17, 16, False))).mkdir()
    assert [Path(found.path) for found in walk(tmp_path, FileSystem())] == [right / name]
