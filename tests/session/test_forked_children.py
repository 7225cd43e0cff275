"""In the child of a fork a store is closed: it misses at once, whatever the parent's threads do."""

import subprocess
import sys
from pathlib import Path

import pytest

from kit.forks import CAN_FORK

PROGRAM = """
import os, signal, sys, threading, warnings
from pathlib import Path
from kit import zoo
from kit.drive import prefill, random_tokens, settings
from omlx_cache import BlockStore, PrefixCache

warnings.simplefilter("ignore", DeprecationWarning)
directory = Path(sys.argv[1])
store = BlockStore(settings(directory / "cold", socket=directory / "s.sock"))
status = store.serve_status()
model = zoo.build("llama")
cache = PrefixCache(model, store)
known, new, ended = random_tokens(100, 1), random_tokens(100, 99), threading.Event()
computing, busy = threading.Event(), threading.Lock()
computing.set()
begun = cache.begin(known)
before = cache.session(known)

def compute():
    seed = 2
    while computing.wait() and not ended.is_set():
        with busy, cache.session(random_tokens(100, seed)) as session:
            prefill(model, session, 16)
            session.commit()
        store.stats()
        seed += 1

def child():
    signal.alarm(60)
    for tokens in (known, new):
        with cache.session(tokens) as session:
            assert (session.cached_tokens, session.miss_reason) == (0, "store_closed")
            assert session.prompt_cache
            session.append(1)
            assert session.commit().skipped == {"store_closed": 1}
        with cache.session(tokens, begun=cache.begin(tokens), deadline=0.1) as session:
            assert session.miss_reason == "store_closed"
        assert cache.lookup(tokens).cached_tokens == 0
        assert cache.prefetch(tokens).wait(10)
        cache.pin(tokens, 1.0).unpin()
        cache.retire(tokens)
    assert begun.ready
    with cache.session(known, begun=begun) as session:
        assert session.miss_reason == "store_closed"
    assert before.commit().pages == 0
    before.abort()
    begun.cancel()
    assert store.closed and store.flush(10) and store.stats().hot.pages == 0
    assert cache.clear() == 0
    store.metrics()
    assert store.close()

def fork(ends_as_a_program):
    # MLX frees arrays at a program's end, with a lock that nobody may have at the fork.
    if not ends_as_a_program:
        return os.fork()
    computing.clear()
    with busy:
        pid = os.fork()
    computing.set()
    return pid

thread = threading.Thread(target=compute, daemon=True)
thread.start()
children = int(sys.argv[2])
for number in range(children):
    pid = fork(number % 2 == 0)
    if pid == 0:
        try:
            child()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        if number % 2:
            os._exit(0)
        break
    _, code = os.waitpid(pid, 0)
    assert code == 0, f"child {number} of {children}: {code}"
else:
    ended.set()
    thread.join()
    assert (directory / "s.sock").exists()
    assert not store.closed
    assert cache.lookup(random_tokens(100, 2)).cached_tokens == 99
    assert store.flush(60) and store.close()
    print("whole", flush=True)
"""


@pytest.mark.skipif(not CAN_FORK, reason="MLX's device does not survive a fork here")
@pytest.mark.parametrize("children", [6, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_child_misses_at_once_and_takes_nothing_from_its_parent(
    tmp_path: Path, children: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(children)],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "whole\n", ended.stderr
