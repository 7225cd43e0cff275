"""Every kind of restore from every tier, and the second turn of a conversation: measured again, and
compared with the records and the page. The families of every run stand for the others."""

import re
from pathlib import Path

import pytest

from fidelity.cases import LONG_ANSWER, POSITIONS
from fidelity.conversation import LENGTHS, lengths_of, retention
from fidelity.document import PATH, render
from fidelity.matrix import TIERS, measure
from fidelity.mixtures import (
    EVERY_RUN,
    NAMES,
    ONE_OF_EACH,
    OTHERS,
    REPRESENTATIVES,
    classes,
    mixture,
    nightly,
    smallest_of_each,
)
from fidelity.record import matrix_cells, read, turns_cell
from kit.examples import some

GROUP = 3
"""So many families are measured together, with one new process."""
EXPECTED = {
    "prefill boundary": 160,
    "mid-sequence branch": 96,
    "end of answer": 180,
    "after wrap-around": 100 + LONG_ANSWER,
    "exact repeat": 159,
}
TURNS = [(name, length) for name in NAMES for length in lengths_of(name)]


def groups_of(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [names[start : start + GROUP] for start in range(0, len(names), GROUP)]


@pytest.mark.parametrize(
    "names", [*groups_of(EVERY_RUN), *nightly(groups_of(OTHERS))], ids="-".join
)
def test_every_cell_is_restored_bit_for_bit_and_its_controls_fail(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    for name, result in measure(names, tmp_path).items():
        assert result.problem == ""
        for position in POSITIONS:
            assert set(result.cells[position]) == set(TIERS)
            for tier, cell in result.cells[position].items():
                assert cell.restored == EXPECTED[position], (name, position, tier)
                assert cell.exact, (name, position, tier)
                assert cell.controls > 0, (name, position, tier)
                assert cell.missed == [], (name, position, tier)
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


@pytest.mark.parametrize(
    ("name", "length"), some(TURNS, *((name, 300) for name in EVERY_RUN), ("mamba2", 3000))
)
def test_two_turns_share_what_they_should(name: str, length: int, tmp_path: Path) -> None:
    found = retention(name, length, tmp_path)
    assert found.good, found
    assert read()[name].turns[LENGTHS.index(length)] == turns_cell(found)


def test_the_record_has_nine_tenths_at_every_length() -> None:
    for name in NAMES:
        cells = read()[name].turns[: len(lengths_of(name))]
        assert len(cells) >= 2
        parts = (part.split(" of ") for cell in cells for part in cell.split(", "))
        assert all(int(restored) >= 0.9 * int(shared) for restored, shared in parts), name


def test_every_mixture_of_classes_has_one_family() -> None:
    assert smallest_of_each() == REPRESENTATIVES
    assert len({mixture(name) for name in NAMES}) == len(REPRESENTATIVES)
    one_of_each = [classes(name) for name in ONE_OF_EACH]
    assert sorted(one_of_each) == sorted({classes(name) for name in NAMES})
    assert sorted([*EVERY_RUN, *OTHERS]) == sorted(NAMES)


def test_every_run_has_each_class_of_layers() -> None:
    """But for the one that only a single family has."""
    of_every_run, of_all = (
        {each for name in names for each in re.findall(r"[A-Z]\w+", classes(name))}
        for names in (EVERY_RUN, NAMES)
    )
    assert of_all - of_every_run <= {"LayerCache"}
