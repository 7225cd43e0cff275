"""What `--help` of a command says: what it does, and what it takes when nothing is given."""

import re
from pkgutil import iter_modules

import pytest

from omlx_cache_daemon import commands
from omlx_cache_daemon.cli import OLD_NAMES, command_names

from .conftest import Cli


def flag_help(text: str, flag: str) -> str:
    """What is said of one flag, on one line."""
    found = re.search(rf"^  {flag}\b(.*?)(?=^  -|^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, flag
    return " ".join(found[1].split())


@pytest.mark.parametrize(
    ("command", "flag", "said"),
    [
        ("serve --help-all", "--host", "(default: 127.0.0.1)"),
        ("serve --help-all", "--port", "(default: 8080)"),
        ("serve --help-all", "--max-tokens", "(default: 512)"),
        ("serve --help-all", "--top-p", "(default: 1.0)"),
        ("rm --help", "--cold-dir", "delete in this directory"),
    ],
)
def test_a_flag_says_its_default_and_what_it_means_here(
    cli: Cli, command: str, flag: str, said: str
) -> None:
    assert said in flag_help(cli(*command.split()).out, flag)


def test_the_overview_has_every_command_in_a_group(cli: Cli) -> None:
    told = cli("--help").out
    assert max(map(len, told.splitlines())) <= 82
    assert len(command_names()) == 18
    assert {module.name for module in iter_modules(commands.__path__)} == set(command_names())
    for name in command_names():
        assert re.search(rf"^  {name} ", told, re.MULTILINE), name
    assert "69 no store answers" in told
    assert (cli().code, cli().out) == (0, told)


def test_help_is_a_command_too(cli: Cli) -> None:
    assert cli("help").out == cli("help", "help").out == cli("--help").out
    assert cli("help", "quota").out == cli("quota", "--help").out
    assert "the nearest is help" in cli("halp").err
    assert "Ctrl-C or SIGTERM ends serve" in cli("stop").err
    cli("").assert_refused(2, "unknown command; see omlx-cache --help")


def test_an_old_name_says_the_new_one(cli: Cli) -> None:
    assert not OLD_NAMES.keys() & set(command_names())
    for name, new in OLD_NAMES.items():
        assert new.split()[0] in command_names()
        said = f"omlx-cache: omlx-cache {name} is now omlx-cache {new}\n"
        cli(name, "--flag", "value").assert_refused(2, said)
