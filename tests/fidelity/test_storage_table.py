"""The storage table is what the groups' own arithmetic gives."""

from fidelity.document import PATH, storage_rows
from fidelity.storage import CONTEXT, footprint


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


def test_a_window_shorter_than_a_block_is_one_block_at_each_restore_point() -> None:
    gpt_oss = footprint("gpt-oss-20b")
    token = 12 * 8 * 2 * 64 * 2
    assert gpt_oss.needed == token * (CONTEXT + 256)
    assert gpt_oss.stored == token * (CONTEXT + 17 * 256)


def test_snapshots_are_far_fewer_than_blocks() -> None:
    qwen = footprint("Qwen3-Next-80B-A3B")
    snapshot = 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert qwen.groups == {"paged": 12 * 2 * 2 * 256 * 2, "state": snapshot}
    assert qwen.snapshots == snapshot * 18
    assert qwen.everything > 4 * qwen.stored
