from pathlib import Path

import pytest

from omlx_cache_daemon.cli import main


def _refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["demo", *arguments]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    return told.err


def test_a_missing_prompt_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "none.txt"
    assert f"{path}: no such file" in _refusal(capsys, "--prompt-file", str(path))


@pytest.mark.parametrize("text", ["", " \n\t\n"])
def test_an_empty_prompt_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(text)
    assert "is empty" in _refusal(capsys, "--prompt-file", str(path))


def test_a_prompt_that_is_not_text_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in _refusal(capsys, "--prompt-file", str(path))


def test_a_prompt_of_less_than_two_blocks_is_refused_with_the_number_needed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "short.txt"
    path.write_text("hello")
    told = _refusal(capsys, "--prompt-file", str(path))
    assert "has 5 tokens; the demo needs 32" in told


def test_asking_for_more_tokens_than_the_file_has_is_refused(
    capsys: pytest.CaptureFixture[str], text_file: Path
) -> None:
    told = _refusal(capsys, "--prompt-file", str(text_file), "--tokens", "5000")
    assert "--tokens asks for 5000" in told


def test_a_model_that_cannot_be_loaded_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = _refusal(capsys, "--model", str(tmp_path))
    assert f"mlx-lm cannot load '{tmp_path}'" in told


def test_a_cold_directory_that_cannot_be_made_is_reported(
    capsys: pytest.CaptureFixture[str], text_file: Path
) -> None:
    assert main(["demo", "--tokens", "40", "--cold-dir", str(text_file / "cold")]) == 1
    assert "the cold tier" in capsys.readouterr().err
