"""Every kind of restore from every tier: measured again, and compared with the page."""

import re
from functools import cache
from pathlib import Path

import pytest

from fidelity.cases import LONG_ANSWER, POSITIONS
from fidelity.document import PATH, render
from fidelity.matrix import TIERS, FamilyResult, measure
from fidelity.mixtures import (
    EVERY_RUN,
    NAMES,
    OTHERS,
    REPRESENTATIVES,
    classes,
    mixture,
    one_of_each,
)
from fidelity.record import matrix_cells, read

GROUP = 4
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
    """The few families, of every run or of the nightly one, that are measured together."""
    names = EVERY_RUN if name in EVERY_RUN else OTHERS
    start = names.index(name) // GROUP * GROUP
    return names[start : start + GROUP]


@pytest.mark.parametrize("name", one_of_each())
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
    assert read()[name].cells == matrix_cells(result)


def test_every_family_of_the_zoo_is_on_record_with_its_cache_classes() -> None:
    assert {name: each.classes for name, each in read().items()} == {
        name: classes(name) for name in NAMES
    }


def test_the_record_has_one_result_for_each_mixture() -> None:
    records = read()
    stands_for = {mixture(name): name for name in REPRESENTATIVES}
    assert [
        name for name in NAMES if records[name].cells != records[stands_for[mixture(name)]].cells
    ] == []


def test_the_page_is_what_the_records_make() -> None:
    assert PATH.read_text(encoding="utf-8") == render(list(read().values()))


def test_the_page_counts_every_family_once_in_each_table() -> None:
    text = PATH.read_text(encoding="utf-8")
    matrix, _heading, turns = text.partition("\n## Two turns")
    for table in (matrix, turns):
        counts = re.findall(r"^\| [^|]+ \| (\d+): ", table, re.MULTILINE)
        assert sum(map(int, counts)) == len(NAMES)
        assert len(counts) < len(NAMES) / 4
