"""What every command prints with `--format json` is what its schema says, over a real store."""

import argparse
import json
import subprocess
import sys

import jsonschema
import pytest

from kit.children import embedded_stores
from kit.output import check_output, schema
from kit.storage import Story
from omlx_cache_daemon.cli import command_names
from omlx_cache_daemon.parsing import load

from .conftest import Cli

STORE = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.identity.namespace import Namespace
settings = CacheSettings(min_free_bytes=0, cold_bytes=2**24, hot_bytes=2**20)
with BlockStore(settings, name=sys.argv[1]) as store:
    commit(store, Story("a"), *range(1, 4))
    assert store.flush()
    for reason in ("diverged", None):
        model = Namespace(Story("a").namespace, {"label": "ann/Tiny-1B", "salt": ""})
        asked = store.requests.ask(model, 4000)
        asked.restored(3000, 100, 0.1, reason)
    asked.ended(5)
    print("ready", flush=True)
    sys.stdin.read()
"""
_NAMESPACE = Story("a").namespace.hex()
_KEY = Story("a").id(1).key.hex()

_ELSEWHERE = {
    "bench",
    "demo",
    "doctor-remote",
    "export",
    "import",
    "simulate",
    "size",
    "warm",
}
"""What needs a model, a trace or a directory of its own is checked where its own tests have one."""

_COMMANDS = {
    "stats": ("stats",),
    "ps": ("ps",),
    "ls": ("ls",),
    "ls-namespace": ("ls", _NAMESPACE),
    "ls-page": ("ls", f"/{_KEY}"),
    "config": ("config",),
    "why": ("why", "--last", "2"),
    "quota": ("quota", "--pin", _NAMESPACE, "--for", "1d"),
    "rm": ("rm", _NAMESPACE, "--dry-run"),
    "doctor": ("doctor",),
    "rm by use": ("rm", "--older", "1d", "--to", "0", "--dry-run"),
}


_LINES = {
    "log": ("log",),
    "log-events": ("log", "--events"),
    "log-kv": ("log", "--kv"),
    "stats-watch": ("stats", "--watch", "0.1"),
}
_CHECKED = {*_COMMANDS, *_LINES, *_ELSEWHERE}


@pytest.mark.parametrize("name", _COMMANDS)
def test_what_a_command_prints_is_what_its_schema_says(
    one_store: dict[str, str], name: str, cli: Cli
) -> None:
    ended = cli(*_COMMANDS[name], "--format", "json", **one_store)
    # 1 is what doctor says of a machine on which something is wrong.
    assert ended.code in ((0, 1) if name == "doctor" else (0,))
    document = json.loads(ended.out)
    if isinstance(document, dict):
        assert next(iter(document)) == "schema_version"
    check_output(name.split()[0], document)


@pytest.mark.parametrize("name", _LINES)
def test_each_line_of_what_goes_on_is_what_its_schema_says(
    one_store: dict[str, str], name: str
) -> None:
    command = [sys.executable, "-m", "omlx_cache_daemon", *_LINES[name], "--format", "json"]
    with subprocess.Popen(command, env=one_store, stdout=subprocess.PIPE) as process:
        check_output(name, json.loads(process.stdout.readline()))
        process.terminate()


def test_a_field_that_the_schema_lacks_or_that_is_gone_is_found(
    one_store: dict[str, str], cli: Cli
) -> None:
    (row,) = json.loads(cli("ps", "--format", "json", **one_store).out)
    gone = {name: value for name, value in row.items() if name != "sessions"}
    for wrong in ({**row, "more": 1}, gone, {**row, "uptime_s": "long"}):
        with pytest.raises(jsonschema.ValidationError):
            check_output("ps", [wrong])
    # Readers of a version take what is added within it.
    jsonschema.validate([{**row, "more": 1}], {**schema(), "$ref": "#/$defs/ps"})


@pytest.mark.nightly
def test_stats_of_several_stores_are_their_sums_and_each_of_them(
    environment: dict[str, str], cli: Cli
) -> None:
    with embedded_stores(STORE) as run:
        pids = {run(environment, name).pid for name in ("one", "two")}
        document = json.loads(cli("stats", "--format", "json").out)
        check_output("stats", document)
        shown = cli("stats", "--all")
        assert {process["pid"] for process in document["processes"]} == pids
        total = document["total"]
        assert total["requests"]["restored_tokens"] == 12_000
        assert total["hot"]["limit_bytes"] == 2 * 2**20
        # Both use one directory.
        assert total["cold"]["limit_bytes"] == 2**24
        lines = [" ".join(line.split()) for line in shown.out.splitlines()]
        assert "histograms.asked_tokens 4, mean 4,000, 95 % within 4,096" in lines
        assert all(f"process {pid}\n" in shown.out for pid in pids)


def test_every_command_with_a_json_format_has_a_schema_that_is_checked() -> None:
    subparsers = argparse.ArgumentParser().add_subparsers()
    missing = []
    for name in command_names():
        load(name, subparsers)
        takes_json = any(
            "--format" in action.option_strings for action in subparsers.choices[name]._actions
        )
        if takes_json and (name not in schema()["$defs"] or name not in _CHECKED):
            missing.append(name)
    assert missing == [], "describe them in schema.json, and run them here"


def test_the_schema_is_a_valid_one_and_the_command_prints_it(cli: Cli) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert json.loads(cli("config", "--schema").out) == schema()
    one = json.loads(cli("config", "--schema", "ls").out)
    assert set(one["$defs"]) == {"ls", "Namespace"}
    jsonschema.validate([], one)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{}], one)
    assert "the nearest is stats" in cli("config", "--schema", "stat").err
