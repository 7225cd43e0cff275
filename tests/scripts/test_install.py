"""scripts/install.sh: the commands are on the PATH after it, and what it leaves is said."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "install.sh"
PYTHON = """#!/bin/sh
case "$*" in
*" install "*) [ ! -e "$HOME/offline" ] ;;
"-m venv --clear "*)
    rm -rf "$4"
    mkdir -p "$4/bin"
    for name in python omlx-cache omlx-cached; do cp "$0" "$4/bin/$name"; done
    ;;
ps) [ ! -e "$HOME/serving" ] || echo "41 serve :8080" ;;
esac
"""
"""Stands for an interpreter, pip and the commands: no test loads 370 MB."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's home without uv or pipx on the PATH."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o700)
    return tmp_path


def run(home: Path, what: str, **more: str) -> "subprocess.CompletedProcess[str]":
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHON": str(home / "python")}
    return subprocess.run(
        ["sh", str(SCRIPT), what], env=environment | more, capture_output=True, text=True
    )


def test_the_commands_are_linked_and_what_it_kept_is_listed_with_its_remedy(home: Path) -> None:
    links = home / ".local" / "bin"
    first = run(home, "install")
    assert first.returncode == 0, first.stderr
    assert f"{links} is not on your PATH" in first.stdout
    again = run(home, "install", PATH=f"{links}:/usr/bin:/bin")
    assert "PATH" not in again.stdout
    assert {path.name for path in links.iterdir()} == {"omlx-cache", "omlx-cached"}
    pages, config = home / "user's pages", home / ".config" / "omlx-cache"
    sockets, shell = home / "run" / "omlx-cache", home / ".zprofile"
    checkout = home / "work" / "omlx-cache"
    for directory in (pages, config, sockets, checkout):
        directory.mkdir(parents=True)
    shell.write_text("export OMLX_CACHE_HOT_BYTES=4GiB\n")
    (config / "omlx-cached.toml").write_text('cold_dir = "~/user\'s pages"\n')
    runs = {"XDG_CONFIG_HOME": str(home / ".config"), "XDG_RUNTIME_DIR": str(home / "run")}
    named = {"OMLX_CACHE_RUNTIME_DIR": str(checkout.parent)}
    if sys.platform != "darwin":
        named["TMPDIR"] = str(checkout.parent)
    told = run(home, "uninstall", **runs, **named).stdout
    assert not list(links.iterdir())
    assert not (home / ".local" / "share" / "omlx-cache").exists()
    assert f"(edit {shell}, which names omlx-cache)" in told
    lines = [line for line in told.splitlines() if str(home) in line and "(edit" not in line]
    assert len(lines) == 4
    subprocess.run(["sh", "-c", "\n".join(lines)], check=True)
    assert not any(directory.exists() for directory in (pages, config, sockets))
    assert checkout.exists(), "no directory that a person named goes with other things in it"


def test_servers_that_run_are_named_before_anything_is_removed(home: Path) -> None:
    run(home, "install")
    (home / "serving").touch()
    ended = run(home, "uninstall")
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == ["These servers run:", "41 serve :8080"]
    assert "Stop them first: nothing was removed" in ended.stderr
    ended = run(home, "uninstall", FORCE="1")
    assert (ended.returncode, "41 serve :8080" in ended.stdout) == (0, True)
    assert "Removed omlx-cache" in ended.stdout
    run(home, "install")
    (home / "serving").unlink()
    assert "These servers run" not in run(home, "uninstall").stdout


def test_an_upgrade_says_what_it_removes_and_what_goes_on_with_the_old_code(home: Path) -> None:
    assert "omlx-cache run" not in run(home, "install").stdout
    (home / ".local/share/omlx-cache/venv/bin/vllm-mlx").touch()
    (home / "serving").touch()
    told = run(home, "install").stdout
    assert "without vllm-mlx: `omlx-cache run vllm-mlx` says how to add it" in told
    assert "Servers that run keep the old code until you restart them." in told
    (home / "serving").unlink()
    again = run(home, "install").stdout
    assert "vllm-mlx" not in again
    assert "old code" not in again


def test_a_command_of_somebody_else_stays(home: Path) -> None:
    other = home / ".local" / "bin" / "omlx-cache"
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    assert run(home, "install").returncode == 1
    run(home, "uninstall")
    assert other.read_text() == "mine"


def test_what_cannot_be_installed_is_no_success(home: Path) -> None:
    (home / "offline").touch()
    assert run(home, "install").returncode != 0
    assert run(home, "install", PYTHON=str(home / "absent")).returncode == 1
