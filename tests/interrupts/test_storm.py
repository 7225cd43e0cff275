"""Ctrl-C at random moments leaves a store as it was: nothing reserved, pinned, held or locked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.examples import some

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("seed", some([1, 2], 1))
def test_hundreds_of_interrupts_leave_the_books_as_without(seed: int, tmp_path: Path) -> None:
    entries = os.pathsep.join([str(TESTS), *(str(Path(e).absolute()) for e in sys.path)])
    ended = subprocess.run(
        [sys.executable, "-m", "kit.storm", str(tmp_path), "300", str(seed)],
        env={**os.environ, "PYTHONPATH": entries},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    books = json.loads(ended.stdout.splitlines()[-1])
    assert books["caught"] > 150
    assert books["restored"] > 0
    left = {
        name: books[name]
        for name in (
            "wrong",
            "reserved_bytes",
            "pinned_pages",
            "pending_bytes",
            "waiting_bytes",
            "live_sessions",
            "snapshot_bytes",
            "snapshots",
        )
    }
    assert left == dict.fromkeys(left, 0)
    assert books["flushed"]
    assert books["closed"]
    assert books["close_seconds"] < 20
    assert books["handler_is_back"]
