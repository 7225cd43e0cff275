"""A second turn restores at least nine tenths of what it shares with the first."""

from pathlib import Path

import pytest

from fidelity.conversation import LENGTHS, lengths_of, retention
from fidelity.mixtures import EVERY_RUN as SMALLEST
from fidelity.mixtures import NAMES
from fidelity.record import read, turns_cell

# The nightly run has every family at every length.
AT_3000 = ["mamba2"]
EVERY_RUN = [
    *[(name, 300) for name in SMALLEST],
    *[(name, 3000) for name in AT_3000],
]
ALL = [(name, length) for name in NAMES for length in lengths_of(name)]
CASES = [
    *(pytest.param(*case) for case in EVERY_RUN),
    *(pytest.param(*case, marks=pytest.mark.nightly) for case in ALL if case not in EVERY_RUN),
]


@pytest.mark.parametrize(("name", "length"), CASES)
def test_two_turns_share_what_they_should(name: str, length: int, tmp_path: Path) -> None:
    found = retention(name, length, tmp_path)
    assert found.good, found
    assert read()[name].turns[LENGTHS.index(length)] == turns_cell(found)


@pytest.mark.parametrize("name", NAMES)
def test_the_record_has_nine_tenths_at_every_length(name: str) -> None:
    cells = read()[name].turns[: len(lengths_of(name))]
    assert len(cells) >= 2
    for cell in cells:
        for part in cell.split(", "):
            restored, shared = map(int, part.split(" of "))
            assert restored >= 0.9 * shared
