"""Several processes use one directory: what one has written is found by the others' next look-up,
what one deletes is served by none, and nothing but the directory connects them."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contract.arithmetic import DENSE, HYBRID, Arithmetic, tokens_of
from contract.driving import BLOCK, Child, ask, settings
from omlx_cache import BlockStore, PrefixCache


def given(directory: Path, **fields: Any) -> str:
    return json.dumps(
        {
            "cold_dir": str(directory),
            "cold_bytes": "64MiB",
            "hot_bytes": 0,
            "min_free_bytes": 0,
            "durability": "none",
            "socket": "off",
            "block_size": BLOCK,
            **fields,
        }
    )


def _ask_until_told(reader: Child, task: dict[str, Any]) -> Any:
    """Look up until something is found: a session gives the news of other processes a fifth of a
    second, in which a busy machine may not have run the thread that fetches them."""
    for _ in range(50):
        told = reader.ask({**task, "commit": False})
        if told["cached"]:
            break
    return told


def test_what_one_writes_or_deletes_the_others_see(
    directory: Path, child: Callable[..., Child]
) -> None:
    count = 3 * BLOCK + 3
    one, two = (child("-m", "contract.worker", given(directory)) for _ in range(2))
    assert one.hear() == two.hear() == {"ready": True}
    for kinds in (DENSE, HYBRID):
        for seed in range(5):
            task = {"do": "ask", "seed": seed, "count": count, "kinds": kinds, "salt": "t"}
            writer, reader = (one, two) if seed % 2 else (two, one)
            assert writer.ask(task)["cached"] == 0
            told = _ask_until_told(reader, task)
            assert (told["cached"], told["wrong"]) == (count - 1, "")
        for process in (one, two):
            assert process.ask({"do": "stats"})["state"] == "ok"
        cleared = one.ask({"do": "clear", "salt": "t", "kinds": kinds})
        assert cleared["deleted"] > 0
        assert two.ask({**task, "seed": 1})["cached"] == 0
    assert one.end() == two.end() == 0


def test_a_process_that_was_stopped_or_killed_holds_up_nobody(
    directory: Path, child: Callable[..., Child]
) -> None:
    model = Arithmetic()
    other = child("-m", "contract.worker", given(directory))
    assert other.hear() == {"ready": True}
    other.tell({"do": "fill", "first": 0, "last": 500, "count": 120})
    for _ in range(5):
        assert other.hear()["flushed"]
    with BlockStore(settings(directory, cold_bytes="64MiB")) as store:
        cache = PrefixCache(model, store)
        other.process.kill()
        assert other.end() == -signal.SIGKILL
        for seed in range(5):
            turn = ask(model, cache, tokens_of(seed, 120))
            assert (turn.cached, turn.wrong) == (119, "")
        ask(model, cache, tokens_of(9_999, 120))
        assert store.flush(30)
        third = child("-m", "contract.worker", given(directory))
        assert third.hear() == {"ready": True}
        assert third.ask({"do": "ask", "seed": 9_999, "count": 120})["cached"] == 119
        assert third.end() == 0


def test_files_and_directories_are_private(directory: Path) -> None:
    model = Arithmetic()
    with BlockStore(settings(directory, cold_bytes="64MiB")) as store:
        ask(model, PrefixCache(model, store), tokens_of(1, 100))
        assert store.flush(30)
        for path in [directory, *directory.rglob("*")]:
            mode = path.stat().st_mode & 0o777
            assert mode == (0o700 if path.is_dir() else 0o600) or path.name == "CACHEDIR.TAG"
    for document in directory.glob("*/namespace.json"):
        assert "tenant" not in document.read_text()


def test_a_directory_that_others_may_write_to_is_not_used(directory: Path) -> None:
    model = Arithmetic()
    with BlockStore(settings(directory)) as store:
        ask(model, PrefixCache(model, store), tokens_of(1, 100))
    directory.chmod(0o777)
    files = sorted(directory.rglob("*"))
    with BlockStore(settings(directory)) as store:
        cache = PrefixCache(model, store)
        for cached in (0, 99):
            turn = ask(model, cache, tokens_of(1, 100))
            assert (turn.cached, turn.wrong) == (cached, "")
        usage = store.stats().cold
        assert usage is not None
        assert usage.state != "ok"
        assert not store.flush(1)
    assert sorted(directory.rglob("*")) == files
