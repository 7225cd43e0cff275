"""`omlx-cache pin` and `unpin`: what stays, for every process of a directory."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.embedded import embedded_stores
from kit.storage import Story, open_cold
from omlx_cache.identity.parts import salt_digest
from omlx_cache_daemon.changing import change_pins
from omlx_cache_storage.cold.small_files import read_pins

Cli = Callable[..., Any]
LIMIT = 1 << 21
PAGES = 6

_EMBED = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**21, hot_bytes=2**20)) as store:
    print("ready", flush=True)
    for line in sys.stdin:
        for name in line.split():
            for number in range(1, 33):
                commit(store, Story(name, nbytes=2**16), number)
                assert store.flush()
        kept = Story("a")
        print(sum(page in store.cold for page in kept.ids(*range(1, 7))), flush=True)
"""


@pytest.fixture
def cli(cli_in_process: Cli) -> Cli:
    return cli_in_process


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Pages of two tenants and two models."""
    tier = open_cold(tmp_path / "cold", LIMIT)
    for name, salt, label in (("a", "alice", "meta/llama"), ("b", "bob", "qwen")):
        document = {"model": name * 64, "salt": salt_digest(salt), "label": label}
        for page in Story(name, nbytes=2**14).pages(*range(1, PAGES + 1)):
            assert tier.write(page, time.time_ns(), document) == "written"
    tier.close()
    return tmp_path / "cold"


@pytest.fixture
def embed(environment: dict[str, str]) -> Iterator[Callable[..., Any]]:
    with embedded_stores(_EMBED) as run:
        yield lambda **variables: run({**environment, **variables})


def _asked(process: Any, names: str = "") -> int:
    process.stdin.write(names + "\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def _state(result: Any) -> Any:
    assert result.code == 0, result.err
    return json.loads(result.out)


def _key(number: int) -> str:
    return Story("a", nbytes=2**14).id(number).key.hex()


def test_what_is_pinned_outlives_a_process_that_fills_the_directory_and_its_restart(
    cli: Cli, cold_dir: Path, embed: Callable[..., Any]
) -> None:
    running = embed()
    assert cli("pin", _key(3)).code == 0
    assert _asked(running, "x y z v w q p") == 3
    running.kill()
    running.wait(60)
    again = embed()
    assert _asked(again, "r") == 3
    assert cli("unpin", "--all").code == 0
    assert _asked(again, "t") == 0


@pytest.mark.parametrize(
    ("arguments", "kind", "name", "pages"),
    [
        (["meta/llama"], "model", "meta/llama", PAGES),
        (["llama"], "model", "meta/llama", PAGES),
        (["bob"], "salt", salt_digest("bob"), PAGES),
        ([Story("b").namespace.hex()[:10]], "namespace", Story("b").namespace.hex(), PAGES),
        ([_key(4)[:12], "--as", "key"], "key", _key(4), 4),
        ([_key(4)], "key", _key(4), 4),
    ],
)
def test_a_pin_names_a_namespace_a_model_a_salt_or_a_chain(
    cli: Cli, cold_dir: Path, arguments: list[str], kind: str, name: str, pages: int
) -> None:
    shown = _state(cli("pin", *arguments, "--for", "7d", "--format", "json"))
    (pin,) = shown["pins"]
    assert (pin["kind"], pin["name"], pin["pages"]) == (kind, name, pages)
    (known,) = read_pins(cold_dir)
    assert known.until_ns is not None
    assert 6.9 * 86_400 < known.until_ns / 1e9 - time.time() <= 7 * 86_400
    assert name[:12] in cli("pin").out
    # Named again it is the same pin, with another end.
    assert len(_state(cli("pin", *arguments, "--format", "json"))["pins"]) == 1
    assert cli("unpin", *arguments).code == 0
    assert read_pins(cold_dir) == ()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pin", "nobody"], 1, "no namespace begins with nobody; there are pages of "),
        (["pin", "ff" * 32, "--as", "key"], 1, "no block's key begins"),
        (["pin", "--for", "7d"], 2, "say what to pin"),
        (["pin", "llama", "--for", "soon"], 2, "not a period"),
        (["unpin"], 2, "say what to unpin"),
        (["unpin", "llama"], 1, "nothing is pinned as llama"),
        (["pin", "llama", "--cold-dir", "/nowhere"], 1, "there is no directory"),
    ],
)
def test_what_it_cannot_do_it_says(
    cli: Cli, cold_dir: Path, arguments: list[str], code: int, says: str
) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (code, "")
    assert says in result.err


def test_pins_of_one_chain_by_several_processes_are_ended_together(
    cli: Cli, cold_dir: Path
) -> None:
    story = Story("a", nbytes=2**14)
    mine, theirs = (story.pin(1, 2, since_ns=since) for since in (1, 2))
    change_pins(cold_dir, lambda pins: (mine, theirs))
    assert _state(cli("pin", "--format", "json"))["pages"] == 2
    assert cli("unpin", _key(2)).code == 0
    assert read_pins(cold_dir) == ()


def test_rm_names_the_pin_and_takes_it_with_what_it_kept(cli: Cli, cold_dir: Path) -> None:
    assert cli("pin", "llama").code == 0
    assert "pinned as model meta/llama" in cli("rm", "llama", "--dry-run").out
    assert len(read_pins(cold_dir)) == 1
    assert cli("rm", "bob", "--yes").code == 0
    assert len(read_pins(cold_dir)) == 1
    assert cli("rm", "llama", "--yes").code == 0
    assert read_pins(cold_dir) == ()


@pytest.mark.parametrize("runs", [False, True])
def test_prune_leaves_what_is_pinned_and_says_how_much(
    cli: Cli, cold_dir: Path, embed: Callable[..., Any], runs: bool
) -> None:
    assert cli("pin", _key(2)).code == 0
    if runs:
        embed()
    shown = _state(cli("prune", "--to", "0", "--older", "0.001s", "--yes", "--format", "json"))
    assert shown["pinned"]["pages"] == 2
    assert shown["deleted_pages"] == 2 * PAGES - 2
    assert "left 2 pages" in cli("prune", "--to", "0", "--yes").out
    assert len(list(cold_dir.rglob("*.safetensors"))) == 2
