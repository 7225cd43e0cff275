"""scripts/size.py and scripts/words.py: what they count, and when they fail."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kit.trees import ROOT, write_tree

SMALL = '"""Doc."""\nimport os\n\n\nclass Page:\n    """Doc."""\n\n    size = 1\n'
LONG = " ".join(["word"] * 26)
NO_PROSE = f"# {LONG}\n\n| {LONG} |\n|---|\n\n```text\n{LONG}\n```\n"
SHORT = f"`{LONG}` and [a link]({LONG.replace(' ', '/')}): a few more.\n\n- an item\n2. another\n"


def run(
    script: str, root: Path, sources: Mapping[str, str], *options: str
) -> "subprocess.CompletedProcess[str]":
    """Write sources below `root`, and run a script on it."""
    write_tree(root, sources)
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *options, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_and_docstrings_cost_nothing_and_a_class_name_in_two_packages_fails(
    tmp_path: Path,
) -> None:
    modules = ("omlx_cache/session.py", "daemon/omlx_cache_daemon/cli.py")
    ended = run("size.py", tmp_path, dict.fromkeys(modules, SMALL))
    assert (ended.returncode, ended.stderr.partition(",")[0]) == (1, "wheel: 1 doubled")
    assert ["core", "2", "1", "0"] in [line.split() for line in ended.stdout.splitlines()]
    assert "twice in the wheel: Page\n" in ended.stdout


def test_more_statements_than_the_limit_fail(tmp_path: Path) -> None:
    ended = run("size.py", tmp_path, {"storage/omlx_cache_storage/page.py": "x = 1\n" * 40_000})
    assert ended.returncode == 1
    assert "storage: 40000 statements, at most" in ended.stderr


def test_long_sentences_are_those_of_prose(tmp_path: Path) -> None:
    page = {"": f"{NO_PROSE}{SHORT}\n- {LONG}\n- **{LONG}.** {LONG[5:]}. It ends.\n"}
    ended = run("words.py", tmp_path / "page", page, "--long")
    assert re.findall("(?<=: 26 words: ).*", ended.stdout) == [LONG, f"**{LONG}."]


def test_more_words_than_the_limit_fail(tmp_path: Path) -> None:
    pages = {"README.md": f"{NO_PROSE}Two words.\n", "docs/commands.md": f"{LONG}. " * 400}
    assert run("words.py", tmp_path, pages).returncode == 0
    ended = run("words.py", tmp_path, {"docs/decisions/1.md": f"{LONG}. " * 4000})
    # README, docs, docs and decisions, pages, the longest, what is read first, long sentences.
    counts = re.findall(r"^ *(\d+) ", ended.stdout, re.M)
    assert (ended.returncode, " ".join(counts)) == (1, "29 0 104000 1 0 86 0")
