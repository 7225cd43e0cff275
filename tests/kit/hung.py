"""Every public call with the time that it has, whatever the disk does; and a program that makes
them all on a directory that begins to hang when it is told.

`python -m kit.hung DIRECTORY calls|open` fills the directory or finds it filled, says `ready` and
waits for a line: then the disk may hang. Each call says its name; `whole` comes at last, and the
process ends.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kit import zoo
from kit.drive import prefill, random_tokens, request, settings
from kit.storage.hanging import in_time
from omlx_cache import BlockStore, PrefixCache

STALLED = 2.0
"""Seconds without a byte after which nobody waits for a disk."""
KNOWN, NEW = random_tokens(200, 1), random_tokens(200, 2)


class Call(NamedTuple):
    name: str
    deadline: float
    run: Callable[[PrefixCache, BlockStore], Any]


def _session(tokens: list[int], **options: Any) -> Callable[[PrefixCache, BlockStore], Any]:
    def run(cache: PrefixCache, store: BlockStore) -> int:
        with cache.session(tokens, **options) as session:
            return int(session.cached_tokens)

    return run


def _begun(cache: PrefixCache, store: BlockStore) -> object:
    begun = cache.begin(KNOWN)
    begun.wait(0.2)
    with cache.session(KNOWN, begun=begun, deadline=0.2) as session:
        return session.miss_reason or True


CALLS = (
    Call("begin", 0.2, lambda cache, store: cache.begin(NEW).cancel() or True),
    Call("session of a begun one", 0.6, _begun),
    Call("session with a deadline", 0.4, _session(KNOWN, deadline=0.2)),
    Call("new session with a deadline", 0.4, _session(NEW, deadline=0.2)),
    Call("session without one", STALLED, _session(KNOWN)),
    Call("new session without one", STALLED, _session(NEW)),
    Call("lookup", 0.2, lambda cache, store: cache.lookup(NEW)),
    Call("lookup of what is known", 0.2, lambda cache, store: cache.lookup(KNOWN)),
    Call("prefetch", 0.2, lambda cache, store: cache.prefetch(KNOWN)),
    Call("pin", 0.2, lambda cache, store: cache.pin(KNOWN, 1.0)),
    Call("retire", 0.2, lambda cache, store: cache.retire(KNOWN)),
    Call("stats", STALLED, lambda cache, store: store.stats()),
    Call("metrics", STALLED, lambda cache, store: store.metrics()),
    Call("configuration", STALLED, lambda cache, store: store.configuration()),
    Call("listing", STALLED, lambda cache, store: store.listing()),
    Call("flush", 0.5, lambda cache, store: store.flush(0.5)),
    Call("clear", 0.5, lambda cache, store: store.clear(store.registered()[-1].digest, 0.5)),
)


def make_calls(model: Any, cache: PrefixCache, store: BlockStore) -> None:
    """Make every call; fails at the first that does not return in its time."""
    for call in CALLS:
        in_time(partial(call.run, cache, store), call.deadline)
        print(call.name, flush=True)
    # Not on a thread of its own: MLX computes.
    with cache.session(NEW, deadline=0.2) as session:
        prefill(model, session, 64)
        in_time(session.commit, STALLED)
    in_time(store.close, 2 * STALLED + 4)
    print("close", flush=True)


def main(directory: Path, mode: str) -> None:
    model = zoo.build("llama")
    with BlockStore(settings(directory)) as before:
        request(model, PrefixCache(model, before), KNOWN, step=64)
    store = BlockStore(settings(directory)) if mode == "calls" else None
    if store is not None:
        request(model, PrefixCache(model, store), random_tokens(40, 3), step=64)
    print("ready", flush=True)
    sys.stdin.readline()
    if store is None:
        asked = in_time(lambda: settings(directory, cold_bytes="auto"), STALLED)
        store = in_time(lambda: BlockStore(asked), STALLED)
        print(store.stats().cold.state, flush=True)
    make_calls(model, PrefixCache(model, store), store)
    print("whole", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
