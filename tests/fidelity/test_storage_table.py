"""The storage table is what the groups' own arithmetic gives."""

from fidelity.document import PATH, storage_rows
from fidelity.storage import CONTEXT, footprint


def test_the_page_has_the_computed_rows() -> None:
    assert [row for row in storage_rows() if row not in PATH.read_text().splitlines()] == []


def test_windows_are_stored_once_and_needed_at_the_end_only() -> None:
    gemma = footprint("Gemma 3 27B")
    token = 16 * 2 * 128 * 2
    assert gemma.groups == {"window1024": 52 * token, "paged": 10 * token}
    assert gemma.stored == 62 * token * CONTEXT
    assert gemma.needed == 10 * token * CONTEXT + 52 * token * 1024
    assert gemma.everything > 3 * gemma.stored


def test_pages_of_a_window_shorter_than_a_block_hold_the_window_only() -> None:
    gpt_oss = footprint("gpt-oss-20b")
    token = 12 * 8 * 2 * 64 * 2
    assert gpt_oss.needed == token * (CONTEXT + 129)
    assert gpt_oss.stored == token * (CONTEXT + CONTEXT // 256 * 129)


def test_snapshots_are_far_fewer_than_blocks() -> None:
    qwen = footprint("Qwen3-Next-80B-A3B")
    snapshot = 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert qwen.groups == {"paged": 12 * 2 * 2 * 256 * 2, "state": snapshot}
    assert qwen.snapshots == snapshot * 18
    assert qwen.everything > 4 * qwen.stored
