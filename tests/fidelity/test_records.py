"""Every kind of restore from every tier, and the second turn of a conversation: measured again, and
compared with the records and the page. The families of every run stand for the others."""

import re
from pathlib import Path

import pytest

from fidelity.cases import LONG_ANSWER, POSITIONS
from fidelity.conversation import LENGTHS, lengths_of, retention
from fidelity.document import PATH, render, storage_rows
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
from fidelity.storage import CONTEXT, footprint
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


def test_the_page_counts_every_family_once_in_each_table() -> None:
    text = PATH.read_text(encoding="utf-8")
    matrix, _heading, turns = text.partition("\n## Two turns")
    for table in (matrix, turns):
        counts = re.findall(r"^\| [^|]+ \| (\d+): ", table, re.MULTILINE)
        assert sum(map(int, counts)) == len(NAMES)
        assert len(counts) < len(NAMES) / 4


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


def test_nesting_ageing_and_precision_are_told_apart() -> None:
    families = ["falcon_h1", "qwen3_next", "qwen3_5", "gear", "gemma3_text", "llama4", "mamba2"]
    assert len({mixture(name) for name in families}) == len(families)
    assert mixture("gear") == {
        "mlx_lm.models.cache.ArraysCache as state of mlx.core.float32",
        "mlx_lm.models.cache.KVCache as paged of mlx.core.float32",
        "mlx_lm.models.cache.RotatingKVCache as window64 of mlx.core.float32",
    }


def test_the_page_has_the_computed_rows() -> None:
    assert [row for row in storage_rows() if row not in PATH.read_text().splitlines()] == []


def test_windows_are_stored_at_restore_points_and_needed_at_the_end_only() -> None:
    gemma = footprint("Gemma 3 27B")
    token = 16 * 2 * 128 * 2
    assert gemma.groups == {"window1024": 52 * token, "paged": 10 * token}
    # Four blocks at each of 15 strides; those of the last boundary and of the end overlap.
    assert gemma.stored == 10 * token * CONTEXT + 52 * token * 256 * (15 * 4 + 5)
    assert gemma.needed == 10 * token * CONTEXT + 52 * token * 1024
    assert gemma.everything > 3 * gemma.stored


def test_snapshots_are_far_fewer_than_blocks() -> None:
    qwen = footprint("Qwen3-Next-80B-A3B")
    snapshot = 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert qwen.groups == {"paged": 12 * 2 * 2 * 256 * 2, "state": snapshot}
    assert qwen.snapshots == snapshot * 18
    assert qwen.everything > 4 * qwen.stored
