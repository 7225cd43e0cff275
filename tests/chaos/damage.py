"""Damage between two runs: every file that a closed store left may be another one when it opens."""

import contextlib
from pathlib import Path

from kit.storage import files_in

from .faults.files import KINDS, damage
from .requests import Requester
from .subjects import MIXTURES
from .talk import Asked
from .world import KIB, World, roomy_options

CHAINS = 48
NAMES = {
    "flip": "bit flips",
    "cut": "truncations",
    "extend": "extensions",
    "zeros": "zeroed sectors",
    "other": "another page's file",
}


def run_damage(world: World) -> None:
    """Store short chains, damage one file of each, and look what comes back; several times over.

    Each chain is hit once a time: behind a page that is missing nothing is read. What the next
    request computes again takes the place of what was damaged.
    """
    world.options = {
        **roomy_options(world.draw),
        "hot_bytes": 256 * KIB,
        "queue_bytes": 96 * KIB,
        "write_policy": "through",
        "commit_wait_seconds": 86400,
        "durability": "none",
    }
    world.open()
    draw = world.draw
    main = Requester(world, draw.choice(list(MIXTURES.values())), 0)
    chains = [
        Asked(tuple(draw.randrange(1, 50_000) for _ in range(draw.randrange(20, 70))), str(number))
        for number in range(CHAINS)
    ]
    for _ in range(max(1, world.sessions // CHAINS)):
        files = _stored(world, main, chains)
        world.close()
        for paths in files.values():
            _damage(world, draw.choice(paths))
        world.open()
        for chain in draw.sample(chains, len(chains)):
            main.restore(chain)
    world.close()
    world.check_closed()


def _stored(world: World, main: Requester, chains: list[Asked]) -> dict[Path, list[Path]]:
    """Store what is missing of chains and return their files, by namespace: each has its own."""
    for chain in chains:
        main.store(chain)
    with world.timed("flush", 30.0):
        if not world.store.flush(30.0):
            world.fail("stuck", "flush was False on a disk that refuses nothing")
    for chain in chains:
        if main.lookup(chain) < len(chain.tokens) // 16 * 16 and main.mixture.anywhere:
            world.fail("lost", "a chain that was computed again is not restored whole")
    files: dict[Path, list[Path]] = {}
    for path in files_in(world.cold_dir):
        files.setdefault(path.parents[1], []).append(path)
    for path in files_in(world.cold_dir, "namespace.json"):
        if world.draw.random() < 0.1:
            files[path.parent] = [path]
    return files


def _damage(world: World, path: Path) -> None:
    kind = world.draw.choice(KINDS)
    with contextlib.suppress(OSError, IndexError):
        damage(path, world.draw, kind)
        world.tally.count(NAMES[kind])
