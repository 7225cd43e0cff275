"""Count the modules, functions and calls that a page meets: computed and stored, read from the disk
after a restart, and restored from memory.

    python -m benchmarks.page_path

Every Python function of the three packages counts that any thread enters between the beginning of a
request and the end of `flush`; what an import runs, and what opens and closes a store, does not.
Nor does the upkeep thread, which looks at the machine's memory by the clock. Comprehensions and
lambdas count as functions.
"""

import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import mlx.core as mx

from omlx_cache import BlockStore, CacheSettings, PrefixCache
from omlx_cache.tools.small_model import small_model

PACKAGES = ("omlx_cache", "omlx_cache_storage", "omlx_cache_daemon")
TOKENS = 600
WAYS = ("miss", "cold", "hot")

Calls = Counter[CodeType]


class Recorder:
    """Counts the calls of this project's functions on the thread that makes it and on later ones,
    by the `way` that it is set to."""

    def __init__(self) -> None:
        self.way = ""
        self.calls: dict[str, Calls] = {way: Counter() for way in ("", *WAYS)}
        self.modules: dict[CodeType, str] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        self.way = ""

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        is_upkeep = threading.current_thread().name.startswith("omlx-cache-upkeep")
        if event == "call" and code.co_name != "<module>" and not is_upkeep:
            module = frame.f_globals.get("__name__", "")
            if module.partition(".")[0] in PACKAGES:
                self.calls[self.way][code] += 1
                self.modules[code] = module


def measure(directory: Path) -> Recorder:
    """Return what was called on each way."""
    recorder = Recorder()
    model = small_model()
    tokens = [(7 * i * i + i) % 512 for i in range(TOKENS)]
    settings = CacheSettings(cold_dir=directory, min_free_bytes=0, socket="off")

    def request(cache: PrefixCache, expected: int) -> None:
        with cache.session(tokens) as session:
            assert session.cached_tokens == expected, session.miss_reason
            for chunk in session.prefill_chunks(256):
                mx.eval(model(mx.array([chunk]), cache=session.prompt_cache))
            session.commit()

    for way, expected in (("miss", 0), ("cold", TOKENS - 1)):
        with BlockStore(settings) as store:
            cache = PrefixCache(model, store)
            recorder.way = way
            request(cache, expected)
            assert store.flush(60)
            if way == "cold":
                recorder.way = "hot"
                request(cache, expected)
            recorder.way = ""
    recorder.stop()
    return recorder


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="omlx-cache-bench-") as directory:
        recorder = measure(Path(directory))
    print(f"{'way':5} {'modules':>8} {'functions':>10} {'calls':>9}")
    for way, ways in (*((way, (way,)) for way in WAYS), ("all", WAYS)):
        calls = sum((recorder.calls[way] for way in ways), Counter[CodeType]())
        modules = {recorder.modules[code] for code in calls}
        print(f"{way:5} {len(modules):8} {len(calls):10} {calls.total():9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
