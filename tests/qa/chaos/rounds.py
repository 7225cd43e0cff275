"""A round of each kind: requests beside a fault, damage between two runs, and broken promises."""

import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest

from kit import forks, leaks
from kit.storage import files_in
from kit.units import KIB
from qa import flushes

from . import disks, faults
from .disks import DAMAGE, damage
from .faults import Fault
from .requests import MIXTURES, Requester, SaltedPrompt
from .world import FLUSH_SECONDS, World, roomy_options, sampled

Round = Callable[[World], None]
SLACK_BYTES = 64 * 1024
CHAINS = 48
NAMES = {
    "flip": "bit flips",
    "cut": "truncations",
    "extend": "extensions",
    "zeros": "zeroed sectors",
    "other": "another page's file",
}


def run_round(world: World, make: Callable[[World], Fault]) -> None:
    """Run one round; what goes wrong is in the world's tally."""
    before = leaks.now()
    gc.collect()
    mx.clear_cache()
    memory = mx.get_active_memory()
    fault = make(world)
    try:
        fault.begin()
    except pytest.skip.Exception as error:
        world.tally.skip(fault.name, str(error))
        return
    try:
        _requests(world, fault)
    finally:
        fault.end()
    gc.collect()
    mx.clear_cache()
    world.check_closed()
    left = leaks.left_since(before)
    if left:
        world.fail("left", str(left))
    more = mx.get_active_memory() - memory
    if more > SLACK_BYTES:
        world.fail("left", f"{more} bytes of MLX's active memory")


def _requests(world: World, fault: Fault) -> None:
    world.options, world.disk = fault.options(), fault.disk()
    world.open()
    threads = world.draw.randrange(1, fault.threads + 1)
    mixtures = world.draw.sample(list(MIXTURES), threads)
    share = world.sessions // threads
    others = [
        threading.Thread(target=_other, args=(world, mixture, number, share), daemon=True)
        for number, mixture in enumerate(mixtures[1:], 1)
    ]
    main = Requester(world, mixtures[0], 0)
    with sampled(world, threads):
        for thread in others:
            thread.start()
        for _ in range(share):
            main.run(1)
            fault.tick(main)
        for thread in others:
            thread.join(120)
            if thread.is_alive():
                world.fail("stuck", f"{thread.name} did not end")
        fault.calm()
        _recovers(world, main)
        world.close()
    temporary = files_in(world.cold_dir, ".tmp-*") if world.cold_dir.exists() else []
    if temporary:
        world.fail("left", f"{len(temporary)} temporary files")


def _other(world: World, mixture: str, number: int, count: int) -> None:
    try:
        Requester(world, mixture, number).run(count)
    except Exception as error:
        world.fail("stuck", f"a request raised {type(error).__name__}: {error}")
        raise


def _recovers(world: World, main: Requester) -> None:
    """When all is well again, a new sequence is stored, durable, and there after a restart."""
    if world.options["hot_cache_only"]:
        return
    draw = world.draw
    # What came before is out of the queue, which may drop what it has no room for; and this is
    # shorter than the smallest queue.
    with world.timed("flush", FLUSH_SECONDS):
        world.store.flush(FLUSH_SECONDS)
    asked = SaltedPrompt(tuple(draw.randrange(1, 50_000) for _ in range(34)), "recovery")
    main.store(asked)
    with world.timed("flush", FLUSH_SECONDS):
        durable = world.store.flush(FLUSH_SECONDS)
    writer = world.store.stats().writer
    if not durable and (writer is None or not writer.dropped_pages):
        # A page that was dropped while the disk failed is missing until it is stored again.
        world.fail("stuck", "all is well again, and flush says False")
        return
    if unbacked := world.store.compare().unbacked:
        world.fail("lost", f"{len(unbacked)} pages are taken for written and are not on the disk")
    promised = main.lookup(asked)
    world.reopen()
    found = main.restore(asked)
    if found < promised or not promised:
        world.fail("lost", f"{found} of {promised} tokens of the newest sequence after a restart")
    cold = world.store.stats().cold
    if cold is None or cold.state != "ok":
        world.fail("stuck", f"all is well again, and the state is {cold and cold.state!r}")


def run_damage(world: World) -> None:
    """Store short chains, damage one file of each, and look what comes back; several times over.

    Each chain is hit once a time: behind a page that is missing nothing is read. What the next
    request computes again takes the place of what was damaged.
    """
    world.options = {
        **roomy_options(world.draw),
        "hot_bytes": 1024 * KIB,
        "queue_bytes": 384 * KIB,
        "write_policy": "through",
        "commit_wait_seconds": 86400,
        "durability": "none",
    }
    world.open()
    draw = world.draw
    main = Requester(world, draw.choice(list(MIXTURES)), 0)
    chains = [
        SaltedPrompt(
            tuple(draw.randrange(1, 50_000) for _ in range(draw.randrange(20, 70))), str(number)
        )
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


def _stored(world: World, main: Requester, chains: list[SaltedPrompt]) -> dict[Path, list[Path]]:
    """Store what is missing of chains and return their files, by namespace: each has its own."""
    for chain in chains:
        main.store(chain)
    with world.timed("flush", FLUSH_SECONDS):
        if not world.store.flush(FLUSH_SECONDS):
            world.fail("stuck", "flush was False on a disk that refuses nothing")
    for chain in chains:
        if main.lookup(chain) < len(chain.tokens) // 16 * 16 and main.mixture == "dense":
            world.fail("lost", "a chain that was computed again is not restored whole")
    files: dict[Path, list[Path]] = {}
    for path in files_in(world.cold_dir):
        files.setdefault(path.parents[1], []).append(path)
    for path in files_in(world.cold_dir, "namespace.json"):
        if world.draw.random() < 0.1:
            files[path.parent] = [path]
    return files


def _damage(world: World, path: Path) -> None:
    kind = world.draw.choice(DAMAGE)
    with contextlib.suppress(OSError, IndexError):
        damage(path, world.draw, kind)
        world.tally.count(NAMES[kind])


def run_promises(world: World, make: Callable[..., list[str]]) -> None:
    """Kill processes, or cut the power of a recorded disk, and call in what `flush` promised."""
    if not forks.CAN_FORK:
        world.tally.skip(world.fault, "processes are forked on Linux")
        return
    found: Counter[str] = Counter()
    for broken in make(1000 * world.seed + world.number, world.directory, found):
        world.fail("lost", broken)
    world.count(found["kills"] + found["cuts"])
    world.tally.add(promises=found["checked"])


FAULTS: tuple[type[Fault], ...] = (
    faults.Calm,
    faults.Operations,
    faults.Restarts,
    faults.ClockJumps,
    faults.Interrupts,
    faults.FewDescriptors,
    disks.FailingDisk,
    disks.FullDisk,
    disks.ReadOnlyDisk,
    disks.SlowDisk,
    disks.LiveDamage,
    disks.Removal,
    disks.FullTmpfs,
)
BETWEEN_RUNS = "damage between runs"
ROUNDS: dict[str, Round] = {
    **{fault.name: partial(run_round, make=fault) for fault in FAULTS},
    BETWEEN_RUNS: run_damage,
    "kill -9": partial(run_promises, make=flushes.kill_round),
    "power cut": partial(run_promises, make=flushes.cut_round),
}
"""By the name of the fault."""
