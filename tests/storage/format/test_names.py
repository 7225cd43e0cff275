"""File names say what a page is, in exactly one way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
