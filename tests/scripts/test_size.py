"""scripts/size.py: what it counts, and when it fails."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "size.py"
SMALL = '"""Doc."""\nimport os\n\n\nclass Page:\n    """Doc."""\n\n    size = 1\n'


def run(root: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write(root: Path, name: str, source: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


def test_imports_and_docstrings_cost_nothing(tmp_path: Path) -> None:
    write(tmp_path, "omlx_cache/session.py", SMALL)
    ended = run(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [line.split() for line in ended.stdout.splitlines() if line.startswith("core")] == [
        ["core", "2", "1", "0"]
    ]


def test_a_class_name_in_two_packages_is_named(tmp_path: Path) -> None:
    write(tmp_path, "omlx_cache/session.py", SMALL)
    write(tmp_path, "daemon/omlx_cache_daemon/cli.py", SMALL)
    assert "twice in the wheel: Page\n" in run(tmp_path).stdout


def test_more_statements_than_the_limit_fail(tmp_path: Path) -> None:
    write(tmp_path, "storage/omlx_cache_storage/page.py", "x = 1\n" * 40_000)
    ended = run(tmp_path)
    assert ended.returncode == 1
    assert "storage: 40000 statements, at most" in ended.stderr
