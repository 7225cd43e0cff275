"""Version 7f87c96 and this one share a directory, one after the other and at once.

Each restores what the other wrote, bit for bit. Both at once on a directory with a budget of about
a quarter of what they write, so that each evicts the other's pages all the time: no wrong byte, no
budget exceeded, no error, and pages written by one are served to the other.

The old version's code comes from this repository's history (`git archive`) and runs in processes of
its own; a clone without that commit skips these tests.
"""

import io
import json
import random
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.driving import Child, disk_bytes, environment
from golden import pagefile
from golden.cases import COMMIT
from kit.forks import CAN_FORK, parent

HERE = Path(__file__).resolve().parents[2]
BLOCK, COUNT = 32, 3 * 32 + 9
KINDS = [["kv", "kv"], ["kv", "state"], ["kv", "window"], ["kv", "keep"]]

Start = Callable[..., Child]


@pytest.fixture(scope="module", autouse=True)
def _forking() -> None:
    """The process that forks lives as long as the run."""
    if CAN_FORK:
        parent()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The old version's packages."""
    command = ["git", "-C", str(HERE), "archive", COMMIT, "omlx_cache", "storage", "daemon"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        pytest.skip(f"this clone has no commit {COMMIT}: {done.stderr.decode().strip()[:200]}")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def start(old: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a process of the old version, or of this one, over one directory."""
    started: list[Child] = []

    def one(version: str, **fields: Any) -> Child:
        given = {
            "cold_dir": str(tmp_path / "cold"),
            "cold_bytes": "64MiB",
            "hot_bytes": 0,
            "min_free_bytes": 0,
            "durability": "none",
            "socket": "off",
            "block_size": BLOCK,
            **fields,
        }
        roots = [old] if version == "old" else []
        env = environment(*roots, OMLX_CACHE_RUNTIME_DIR=str(tmp_path / "run"))
        log = tmp_path / f"{version}-{len(started)}.log"
        command = ["-m", "contract.worker", json.dumps(given)]
        started.append(Child(command, env=env, log=log, forked=not roots))
        return started[-1]

    yield one
    for child in started:
        child.kill()


def ready(child: Child, old: Path | None = None) -> Child:
    """Wait for a process, and see that it runs the code that it should."""
    assert child.hear() == {"ready": True}
    code = Path(child.ask({"do": "where"})["file"])
    assert code.is_relative_to(old or HERE)
    return child


def test_each_restores_what_the_other_wrote(start: Start, old: Path) -> None:
    def requests(salt: str) -> list[dict[str, Any]]:
        return [
            {"do": "ask", "seed": seed, "count": COUNT, "kinds": kinds, "salt": salt}
            for seed, kinds in enumerate(KINDS)
        ]

    def write(child: Child, salt: str) -> None:
        for task in requests(salt):
            told = child.ask(task)
            assert told == {"cached": 0, "reason": "absent", "wrong": "", "flushed": True}

    def restore(child: Child, salt: str) -> None:
        for task in requests(salt):
            told = child.ask({**task, "commit": False})
            assert told == {"cached": COUNT - 1, "reason": None, "wrong": "", "flushed": True}

    first = ready(start("old"), old)
    write(first, "old, then new")
    assert first.end() == 0
    second = ready(start("new"))
    restore(second, "old, then new")
    write(second, "new, then old")
    third = ready(start("old"), old)
    restore(third, "new, then old")
    write(third, "old beside new")
    restore(second, "old beside new")
    write(second, "new beside old")
    restore(third, "new beside old")
    for deleter, other, salt in [
        (second, third, "old, then new"),
        (third, second, "new, then old"),
    ]:
        for task in requests(salt):
            assert deleter.ask({"do": "clear", "salt": salt, "kinds": task["kinds"]})["deleted"]
            assert other.ask({**task, "commit": False})["cached"] == 0
    for child in (second, third):
        assert child.end() == 0
        assert "Traceback" not in child.text()
        assert "omlx_cache" not in child.text()


def both_at_once(
    start: Start, old: Path, directory: Path, *, processes: int, rounds: int, budget: int
) -> None:
    """Requests to processes of both versions at once, for several times what the budget holds."""
    children = [start(("old", "new")[place % 2], cold_bytes=budget) for place in range(processes)]
    for place, child in enumerate(children):
        ready(child, (old, None)[place % 2])
    chance, most = random.Random(3), 0
    asked: list[set[int]] = [set() for _ in children]
    served = [0] * processes
    for number in range(rounds):
        seeds = [chance.randrange(max(0, 2 * number - 6), 2 * number + 2) for _ in children]
        for seed, child in zip(seeds, children, strict=True):
            kinds = KINDS[seed % len(KINDS)]
            child.tell({"do": "ask", "seed": seed, "count": COUNT, "kinds": kinds})
        for place, (seed, child) in enumerate(zip(seeds, children, strict=True)):
            most = max(most, disk_bytes(directory, children))
            told = child.hear()
            assert told["wrong"] == "", (place, seed, told)
            # What it never computed itself, another one wrote.
            served[place] += told["cached"] > 0 and seed not in asked[place]
            asked[place].add(seed)
    most = max(most, disk_bytes(directory, children))
    stats = [child.ask({"do": "stats"}) for child in children]
    for child, one in zip(children, stats, strict=True):
        assert (one["state"], one["corrupt_pages"]) == ("ok", 0)
        assert child.end() == 0
        assert "Traceback" not in child.text()
    assert sum(one["evicted_pages"] for one in stats) > 0
    assert min(served) > 0
    assert budget / 2 < max(most, disk_bytes(directory)) <= budget
    for path in directory.rglob("*.safetensors"):
        pagefile.check(path)


def test_both_at_once_under_eviction(start: Start, old: Path, tmp_path: Path) -> None:
    both_at_once(start, old, tmp_path / "cold", processes=2, rounds=45, budget=3 << 20)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processes", [2, 4])
def test_both_at_once_for_longer(processes: int, start: Start, old: Path, tmp_path: Path) -> None:
    directory = tmp_path / "cold"
    both_at_once(
        start, old, directory, processes=processes, rounds=300 // processes, budget=4 << 20
    )
