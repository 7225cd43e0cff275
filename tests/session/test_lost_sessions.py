"""Sessions that nobody ends: collected in a cycle under any lock, or killed in mid-prefill."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kit import zoo
from kit.drive import random_tokens, request, settings
from kit.examples import some
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.keys import KeyChain

PROMPT = random_tokens(320, 1)


@pytest.mark.parametrize("whose", ["counters", "flights"])
def test_a_session_in_a_cycle_is_collected_while_a_lock_is_held(
    cache: PrefixCache, whose: str
) -> None:
    """The collector runs in whatever thread allocates, also in one that holds a lock."""
    lock = {"counters": cache.store.counters._lock, "flights": cache.store.flights.lock}[whose]
    cycle: list[object] = [cache.session(PROMPT)]
    cycle.append(cycle)
    collected = threading.Event()
    del cycle

    def collect() -> None:
        with lock:
            gc.collect()
        collected.set()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    assert collected.wait(10)
    thread.join()
    assert cache.store.stats().requests.live_sessions == 0
    assert cache.store.stats().snapshots.live_bytes == 0


def test_nothing_remembers_the_keys_of_a_session_that_ended(cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        assert next(session.prefill_chunks(64))
    del session
    gc.collect()
    chains = [one for one in gc.get_objects() if isinstance(one, KeyChain)]
    assert not [chain for chain in chains if chain.tokens[:320].tolist() == PROMPT]
    assert cache.store.flights.idle


CHILD = """
import sys
from pathlib import Path
from kit import zoo
from kit.drive import feed, random_tokens, settings
from omlx_cache import BlockStore, PrefixCache

family, disk = sys.argv[1:]
store = BlockStore(settings(Path(disk), snapshot_stride=64))
model = zoo.build(family)
session = PrefixCache(model, store).session(random_tokens(320, 1))
fed = 0
for chunk in session.prefill_chunks(64):
    if fed >= 256:
        break
    feed(model, session.prompt_cache, chunk)
    fed += len(chunk)
print(store.flush(30), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("family", some(["llama", "gemma3_text", "qwen3_next"], "qwen3_next"))
def test_what_was_prefilled_before_kill_9_is_restored(family: str, tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, family, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    ) as child:
        assert child.stdout.readline() == b"True\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    model = zoo.build(family)
    with BlockStore(settings(tmp_path)) as store:
        turn = request(model, PrefixCache(model, store), PROMPT)
    # All chunks but the last were followed by another: what they held is stored.
    assert turn.cached == 256
