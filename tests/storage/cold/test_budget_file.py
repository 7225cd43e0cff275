"""The budget of a directory: what its file says, what a store that opens makes of it, and that one
which is changed from outside counts at once."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.storage import FaultyDisk, Story, disk_usage, open_cold, set_budget
from kit.units import GIB, KIB
from omlx_cache_daemon.changing import change_budget
from omlx_cache_storage.cold.shared_limits import agree
from omlx_cache_storage.cold.small_files import (
    BUDGET,
    MAX_DOCUMENT_BYTES,
    MOST_BYTES,
    Budget,
    encode_budget,
    parse_budget,
    read_budget,
    write_budget,
)
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import BUDGET_FILE

SHARES = {"salt": {"*": {"fraction": 0.25}}, "city": {"x": 7}}
"""What an earlier version wrote, and what only a later one may understand."""
LIMIT = 2048 * KIB
_ADD = """
import sys
from dataclasses import replace
from pathlib import Path
from omlx_cache_daemon.changing import change_budget
sys.stdin.read(1)
for turn in range(5):
    change_budget(Path(sys.argv[1]), lambda known: replace(known, nbytes=known.nbytes + 1))
"""


SIZES = st.integers(0, MOST_BYTES)


NEAR = st.integers(0, 5)
"""Few sizes, so that equal ones are met."""


BUDGETS = st.builds(
    Budget,
    SIZES,
    st.sampled_from(["free space", "store", "quota"]),
    st.sampled_from([{}, SHARES]),
)


KNOWN = st.none() | st.builds(
    Budget,
    NEAR,
    st.sampled_from(["free space", "store", "quota"]),
    st.sampled_from([{}, SHARES]),
)


@given(BUDGETS)
def test_a_budget_is_what_its_document_says(budget: Budget) -> None:
    assert parse_budget(json.loads(encode_budget(budget))) == budget


def test_torn_and_foreign_files_are_no_budget_and_are_replaced(tmp_path: Path) -> None:
    path, budget = tmp_path / BUDGET_FILE, Budget(GIB, "store")
    whole = encode_budget(budget).decode().strip()
    wrong = [
        "",
        whole[:-1],
        "[]",
        "[" * 100_000,
        whole.replace(str(GIB), "true"),
        whole.replace(str(GIB), "-1"),
        whole.replace(str(GIB), str(MOST_BYTES + 1)),
        whole.replace('"version": 1', '"version": "1"'),
        whole.replace('"version": 1', '"version": true'),
        whole + " " * MAX_DOCUMENT_BYTES,
    ]
    for text in wrong:
        path.write_text(text)
        path.chmod(0o600)
        assert read_budget(tmp_path) is None, text[:80]
    path.write_text(whole)
    path.chmod(0o666)
    assert read_budget(tmp_path) is None
    assert write_budget(tmp_path, budget)
    assert read_budget(tmp_path) == budget


def test_a_refusing_disk_is_not_taken_for_a_directory_without_a_budget(tmp_path: Path) -> None:
    disk = FaultyDisk()
    write_budget(tmp_path, Budget(GIB, "quota"), disk)
    for name in ("open", "read"):
        disk.fail = {name: errno.EIO}
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            read_budget(tmp_path, disk)


def test_a_write_that_fails_leaves_the_budget_before_and_nothing_else(tmp_path: Path) -> None:
    disk = FaultyDisk()
    budget = Budget(GIB, "quota")
    assert write_budget(tmp_path, budget, disk)
    disk.torn_at = 5
    with pytest.raises(OSError, match="went away"):
        write_budget(tmp_path, Budget(2 * GIB, "quota"), disk)
    assert read_budget(tmp_path) == budget
    assert [path.name for path in tmp_path.iterdir()] == [BUDGET_FILE]


def test_a_directory_that_is_gone_or_open_to_others_gets_no_budget(tmp_path: Path) -> None:
    budget = Budget(GIB, "quota")
    assert not write_budget(tmp_path / "gone", budget)
    tmp_path.chmod(0o777)
    assert not write_budget(tmp_path, budget)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [{"bytes": GIB}, {"limits": {"soft": GIB}}])
def test_a_newer_versions_file_counts_as_far_as_it_is_understood_and_stays(
    tmp_path: Path, more: dict[str, object]
) -> None:
    said = {"version": 2, "set_by": "store", "shares": SHARES, **more}
    (tmp_path / BUDGET_FILE).write_text(json.dumps(said))
    (tmp_path / BUDGET_FILE).chmod(0o600)
    expected = Budget(GIB, "quota", SHARES) if "bytes" in more else None
    assert read_budget(tmp_path) == expected
    assert BUDGET.is_newer(tmp_path)
    assert not write_budget(tmp_path, Budget(5, "store"))
    assert json.loads((tmp_path / BUDGET_FILE).read_text()) == said


@given(KNOWN, NEAR, st.booleans(), st.booleans(), NEAR)
def test_opening_twice_agrees_on_the_same(
    known: Budget | None, wanted: int, derived: bool, alone: bool, used: int
) -> None:
    agreed = agree(known, wanted, derived=derived, alone=alone, used_bytes=used)
    written = agreed.budget if agreed.write else known
    again = agree(written, wanted, derived=derived, alone=alone, used_bytes=used)
    assert again == agreed._replace(write=False)


@given(KNOWN, NEAR, st.booleans(), st.booleans(), NEAR)
def test_a_quota_stays_and_shares_stay(
    known: Budget | None, wanted: int, derived: bool, alone: bool, used: int
) -> None:
    agreed = agree(known, wanted, derived=derived, alone=alone, used_bytes=used)
    assert agreed.budget.set_by != "quota" or agreed.budget == known
    if known is not None:
        assert agreed.budget.shares == known.shares
        assert known.set_by != "quota" or agreed.budget == known
        assert agreed.write == (agreed.budget != known)
    if derived:
        assert not agreed.note or agreed.budget.nbytes <= used
        assert known is None or known.set_by == "free space" or agreed.budget == known
    else:
        assert bool(agreed.note) == (agreed.budget.nbytes != wanted)


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (Budget(99, "store"), "set by a store's cold_bytes; with `omlx-cache quota auto`"),
        (Budget(0, "quota"), "set by `omlx-cache quota`; with `omlx-cache quota auto`"),
        (Budget(100, "store"), ""),
        (Budget(9, "free space"), ""),
    ],
)
def test_a_store_that_would_derive_far_more_says_who_set_so_little(
    known: Budget, told: str
) -> None:
    note = agree(known, 1000, derived=True, alone=True, used_bytes=0).note
    assert told in note if told else not note


def test_a_store_says_that_others_left_it_no_more_than_its_pages_take() -> None:
    known = Budget(900, "free space")
    agreed = agree(known, 500, derived=True, alone=True, used_bytes=500)
    assert (agreed.budget.nbytes, agreed.write) == (500, True)
    assert "others fill the disk" in agreed.note
    assert not agree(known, 501, derived=True, alone=True, used_bytes=500).note


def test_auto_goes_by_the_space_that_is_free_now(tmp_path: Path) -> None:
    wanted = [LIMIT]
    tier = ColdTier(tmp_path, LIMIT, derived=True)
    tier.open(lambda used: wanted[-1])
    wanted.append(2 * LIMIT)
    tier.settle()
    assert tier.limit_bytes == LIMIT
    change_budget(tmp_path, lambda known: replace(known, set_by="free space"))
    tier.settle()
    assert tier.limit_bytes == 2 * LIMIT


@pytest.mark.parametrize(
    ("known", "derived", "alone", "used", "expected"),
    [
        (None, True, True, 500, Budget(100, "free space")),
        (None, True, False, 500, Budget(500, "free space")),
        (None, False, False, 50, Budget(100, "store")),
        (None, False, False, 500, None),
        (Budget(900, "free space"), False, False, 50, Budget(100, "store")),
        (Budget(900, "free space"), False, False, 500, None),
        (Budget(900, "store"), False, False, 50, None),
        (Budget(90, "store"), True, True, 50, None),
        (Budget(90, "free space"), True, True, 50, Budget(100, "free space")),
        (Budget(90, "free space"), True, False, 50, None),
        (Budget(900, "quota"), False, True, 50, None),
    ],
)  # fmt: skip
def test_what_a_store_that_wants_100_bytes_agrees_to(
    known: Budget | None, derived: bool, alone: bool, used: int, expected: Budget | None
) -> None:
    agreed = agree(known, 100, derived=derived, alone=alone, used_bytes=used)
    assert (agreed.budget if agreed.write else None) == expected


def _filled(directory: Path, name: str = "one") -> ColdTier:
    tier = open_cold(directory, LIMIT)
    story = Story(name, nbytes=64 * KIB)
    for number in range(1, 9):
        assert tier.write(story.page(number), 10**18 + number, {}) == "written"
    return tier


def test_stores_that_run_keep_to_a_smaller_budget_from_their_next_idle_moment_on(
    tmp_path: Path,
) -> None:
    tiers = [_filled(tmp_path), _filled(tmp_path, "two")]
    limit = disk_usage(tmp_path) // 2
    set_budget(tmp_path, Budget(limit, "quota"))
    for tier in tiers:
        tier.settle()
        tier.check_integrity()
        assert disk_usage(tmp_path) <= tier.usage().nbytes <= limit == tier.usage().limit_bytes
        assert tier.usage().pages > 0
        tier.close()


def test_changes_of_several_processes_at_once_are_all_kept(tmp_path: Path) -> None:
    tier = _filled(tmp_path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _ADD, str(tmp_path)],
            stdin=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        process.stdin.write("g")
        process.stdin.close()
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    budget = read_budget(tmp_path)
    assert budget.nbytes == LIMIT + 15
    tier.close()
