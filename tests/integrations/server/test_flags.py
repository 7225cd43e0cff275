"""Every flag of mlx_lm.server, and every setting of the cache, is one of `omlx-cache serve`."""

import argparse
import re
import subprocess
import sys

import pytest

from omlx_cache.settings.names import SETTING_NAMES
from omlx_cache_daemon.commands import serve
from omlx_cache_daemon.server_flags import SETTINGS, given_settings


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", *arguments])


def test_upstreams_flags_and_defaults_are_ours() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "mlx_lm", "server", "--help"], capture_output=True, text=True
    ).stdout
    flags = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"}
    assert len(flags) > 20
    defaults = vars(parse())
    assert flags <= {f"--{name.replace('_', '-')}" for name in defaults}
    entries = re.split(r"\n  (?=--)", shown)
    told = [(e.split()[0], re.search(r"\(default:\s+(\S+?)[),]", e)) for e in entries]
    defaulted = [(flag, match.group(1)) for flag, match in told if match]
    assert len(defaulted) >= 12
    for flag, default in defaulted:
        value = defaults[flag[2:].replace("-", "_")]
        assert (",".join(value) if isinstance(value, list) else str(value)) == default, flag


def test_every_setting_is_a_flag_except_the_log_level_and_the_token() -> None:
    # A secret on a command line could be read by everybody.
    assert set(SETTINGS) == set(SETTING_NAMES) - {"log_level", "status_token"}


@pytest.mark.parametrize("flag", ["--remote-password", "--remote-secret"])
def test_a_secret_is_taken_from_a_file_that_a_flag_names(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = flag[2:].replace("-", "_")
    assert given_settings(parse(flag, "file:/a/path")) == {name: "file:/a/path"}
    assert given_settings(parse(f"{flag}-file", "/a/path")) == {f"{name}_file": "/a/path"}
    with pytest.raises(SystemExit):
        parse(flag, "hunter2")
    told = capsys.readouterr().err
    assert "file:PATH" in told
    assert "hunter2" not in told


def test_no_password_is_taken_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert given_settings(parse("--remote", "redis://me@nas")) == {"remote": "redis://me@nas"}
    with pytest.raises(SystemExit):
        parse("--remote", "redis://me:hunter2@nas")
    told = capsys.readouterr().err
    assert "OMLX_CACHE_REMOTE_PASSWORD" in told
    assert "hunter2" not in told


def test_only_given_settings_override_the_environment() -> None:
    assert given_settings(parse()) == {}
    args = parse("--hot-bytes", "1GiB", "--hot-cache-only", "--block-size", "128")
    expected = {"hot_bytes": "1GiB", "hot_cache_only": True, "block_size": "128"}
    assert given_settings(args) == expected


@pytest.mark.parametrize(("text", "size"), [("2G", 2 * 10**9), ("1.5MB", 1_500_000), ("77", 77)])
def test_prompt_cache_bytes_reads_sizes_as_upstream_does(text: str, size: int) -> None:
    assert parse("--prompt-cache-bytes", text).prompt_cache_bytes == size
