"""What `--cold-dir` says of a place that is no cold directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.mark.parametrize("arguments", [("ls",), ("ls", "ab"), ("inspect", "ab")], ids=" ".join)
def test_a_file_is_not_a_directory(cli: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "file"
    path.touch()
    result = cli(*arguments, "--cold-dir", str(path))
    assert (result.code, result.out) == (1, "")
    assert result.err == f"omlx-cache: {path} is not a directory\n"


def test_a_missing_directory_is_named_and_no_store_is_spoken_of(cli: Cli, tmp_path: Path) -> None:
    result = cli("ls", "--cold-dir", str(tmp_path / "absent"))
    assert (result.code, result.out) == (1, "")
    assert result.err == f"omlx-cache: there is no directory {tmp_path / 'absent'}\n"


def test_a_directory_open_to_others_is_shown_with_what_to_do(cli: Cli, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    result = cli("ls", "--cold-dir", str(shared))
    assert result.code == 0
    assert "no store uses this directory" in result.err
    assert "chmod 700" in result.err


def test_a_directory_without_pages_says_so(cli: Cli, tmp_path: Path) -> None:
    result = cli("ls", "--cold-dir", str(tmp_path))
    assert (result.code, result.err) == (0, "omlx-cache: no pages\n")
    assert cli("ls", "--cold-dir", str(tmp_path), "--format", "json").out == "[]\n"
