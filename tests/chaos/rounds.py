"""A round of requests: several threads, one store, one fault, and a look at what is left."""

import gc
import threading
from collections.abc import Callable

import mlx.core as mx

from kit import leaks
from kit.storage import files_in

from .faults import Fault
from .faults.base import Unavailable
from .requests import Requester, mixtures_of
from .sampling import sampled
from .subjects import MIXTURES
from .talk import Asked
from .world import World

FLUSH_SECONDS = 30.0
SLACK_BYTES = 64 * 1024


def run_round(world: World, make: Callable[[World], Fault]) -> None:
    """Run one round; what goes wrong is in the world's tally."""
    before = leaks.now()
    gc.collect()
    mx.clear_cache()
    memory = mx.get_active_memory()
    fault = make(world)
    try:
        fault.begin()
    except Unavailable as error:
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
    mixtures = mixtures_of(world.draw, threads, MIXTURES)
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


def _other(world: World, mixture: object, number: int, count: int) -> None:
    try:
        Requester(world, mixture, number).run(count)  # type: ignore[arg-type]
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
    asked = Asked(tuple(draw.randrange(1, 50_000) for _ in range(34)), "recovery")
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
