"""Every kind of restore from every tier: measured again, and compared with the page."""

from functools import cache
from pathlib import Path

import pytest

from fidelity.cases import LONG_ANSWER, POSITIONS
from fidelity.document import PATH, PROSE, broken_rows, family_row
from fidelity.matrix import TIERS, FamilyResult, measure
from fidelity.mixtures import NAMES, mixture, nightly, others, representatives

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
def measured(names: tuple[str, ...], root: Path) -> dict[str, FamilyResult]:
    """Measure some families with one new process."""
    return measure(names, root / names[0])


def group_of(name: str) -> tuple[str, ...]:
    """The dozen families, of every run or of the nightly one, that are measured together."""
    names = representatives() if name in representatives() else others()
    start = names.index(name) // GROUP * GROUP
    return names[start : start + GROUP]


def matrix_rows() -> list[str]:
    """The lines of the page's first table that are about a family."""
    table = PATH.read_text().partition("\n## Two turns")[0]
    return [line for line in table.splitlines() if line.startswith("| ") and "====" in line]


@pytest.mark.parametrize("name", [*representatives(), *nightly(others())])
def test_every_cell_is_restored_bit_for_bit_and_its_controls_fail(name: str, root: Path) -> None:
    result = measured(group_of(name), root)[name]
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


def test_the_page_has_one_result_for_each_mixture() -> None:
    rows = dict(line[2:].split(" | ", 1) for line in matrix_rows())
    stands_for = {mixture(name): name for name in representatives()}
    assert [name for name in NAMES if rows[name] != rows[stands_for[mixture(name)]]] == []


def test_the_page_says_what_the_module_says() -> None:
    text = PATH.read_text()
    assert [part for part in PROSE if part.strip() not in text] == []
