"""Every family, every kind of restore, every tier: measured again and compared with the page."""

from functools import cache
from pathlib import Path

import pytest

from fidelity.cases import LONG_ANSWER, POSITIONS
from fidelity.document import PATH, PROSE, broken_rows, family_row
from fidelity.matrix import TIERS, FamilyResult, measure
from kit import zoo

NAMES = [name for name, family in zoo.FAMILIES.items() if not family.broken]
GROUP = 12
EXPECTED = {
    "prefill boundary": 160,
    "mid-sequence branch": 96,
    "end of answer": 180,
    "after wrap-around": 100 + LONG_ANSWER,
    "exact repeat": 159,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fidelity")


@cache
def measured(group: int, root: Path) -> dict[str, FamilyResult]:
    """Measure a dozen families with one new process."""
    return measure(NAMES[group * GROUP : (group + 1) * GROUP], root / str(group))


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_restored_bit_for_bit_and_its_controls_fail(name: str, root: Path) -> None:
    result = measured(NAMES.index(name) // GROUP, root)[name]
    assert result.problem == ""
    for position in POSITIONS:
        assert set(result.cells[position]) == set(TIERS)
        for tier, cell in result.cells[position].items():
            assert cell.restored == EXPECTED[position], (position, tier)
            assert cell.exact, (position, tier)
            assert cell.controls > 0, (position, tier)
            assert cell.missed == [], (position, tier)
    assert family_row(result) in PATH.read_text().splitlines()


def test_the_page_has_a_row_for_every_family_of_the_zoo() -> None:
    text = PATH.read_text()
    assert [name for name in NAMES if f"\n| {name} |" not in text] == []
    assert all(row in text for row in broken_rows())


def test_the_page_says_what_the_module_says() -> None:
    text = PATH.read_text()
    assert [part for part in PROSE if part.strip() not in text] == []
