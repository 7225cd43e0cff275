"""Write the ten most expensive lines of each path, without bytes, as Markdown.

    python -m benchmarks.profile_paths benchmarks/logs/profiles [PATH ...]

A timer of the processor's time interrupts the path a thousand times or more and notes the line that
runs, which slows nothing down; C functions count for the line that calls them. What threads do is
done on one, so that it is seen. A second run, under cProfile, counts calls.
"""

import argparse
import cProfile
import linecache
import pstats
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

from benchmarks.arguments import folder
from benchmarks.growth_pages import Directory
from benchmarks.overhead import KINDS, LAYERS, WINDOW, Layers, appending, feed, opened
from omlx_cache.prefix import PrefixCache
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.figures import SIZES
from omlx_cache_storage.keys import as_tokens

LINES = 10
SAMPLES = 1000
INTERVAL = 0.001
TOKENS = 131_072
APPENDED = 2048
FILES = 20_000
ROOT = Path(__file__).resolve().parent.parent

Work = Callable[[], object]
Path_ = Callable[[Path], Iterator[Work]]
"""Yields works that do the same: what prepares each is between them, and is not measured."""


class OnThisThread(Executor):
    """Runs what it is given at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Sampler:
    """Counts the lines that run between `begin` and `end`, while it is entered.

    The timer runs all the while: started for each, it would never see what is shorter than a tick.
    """

    def __init__(self) -> None:
        self.lines: Counter[tuple[str, int]] = Counter()
        self._counting = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def run(self, work: Work) -> object:
        self._counting = True
        try:
            return work()
        finally:
            self._counting = False

    def _note(self, _signal: int, frame: FrameType | None) -> None:
        while frame is not None and _is_call(frame):
            frame = frame.f_back
        # A call that is no work of the path's but this script's is left out.
        if self._counting and frame is not None and frame.f_code.co_filename != __file__:
            # Between two lines a frame is on none.
            line = frame.f_lineno or frame.f_code.co_firstlineno
            self.lines[frame.f_code.co_filename, line] += 1


def _is_call(frame: FrameType) -> bool:
    """True at the beginning of a function, and in one without a source: its caller's line counts.

    Python looks at signals when a function is entered, and then it is at its `def`.
    """
    code = frame.f_code
    if code.co_filename.startswith("<"):
        return True
    return frame.f_lineno == code.co_firstlineno and not code.co_name.startswith("<")


def hot_restore(directory: Path) -> Iterator[Work]:
    with _hot(directory) as bed:
        while True:
            yield bed.restore


def look_up(directory: Path) -> Iterator[Work]:
    with _hot(directory) as bed:
        tokens: Any = as_tokens(bed.tokens)
        while True:
            yield lambda: bed.cache.lookup(tokens, salt="")


def cold_restore(directory: Path) -> Iterator[Work]:
    with _hot(directory):
        pass
    bed = Bed(_size(), directory, hot=False, durability="none")
    with bed.store, _on_this_thread(bed.store):
        while True:
            yield bed.restore


def commit(directory: Path) -> Iterator[Work]:
    bed = Bed(_size(), directory, hot_cache_only=True)
    with bed.store, _on_this_thread(bed.store):
        live = bed.live_arrays()
        while True:
            yield bed.again(live).commit


def append(kind: str) -> Path_:
    """Return the path of tokens appended to layers of which every other one is of a kind."""

    def path(directory: Path) -> Iterator[Work]:
        prompt = list(range(2 * WINDOW))
        with opened() as store, _on_this_thread(store):
            cache = PrefixCache(Layers(LAYERS, kind), store)
            while True:
                with appending(cache, prompt, APPENDED) as session:
                    for token in range(APPENDED):
                        feed(session)
                        yield partial(session.append, token)

    return path


def start_up(directory: Path) -> Iterator[Work]:
    files = Directory(directory / "files")
    files.grow(FILES)
    while True:
        yield files.open


PATHS: Mapping[str, tuple[str, Path_, int]] = {
    "look-up": (f"Look-up of {TOKENS:,} tokens", look_up, 1),
    "restore-hot": (f"Hot restore of {TOKENS:,} tokens", hot_restore, 1),
    "restore-cold": (f"Cold restore of {TOKENS:,} tokens, from the file cache", cold_restore, 1),
    "commit": (f"Commit of {TOKENS:,} tokens", commit, 1),
    **{
        f"append-{kind}": (f"{APPENDED:,} tokens appended, {kind}", append(kind), APPENDED)
        for kind in KINDS
    },
    "start-up": (f"Start-up on {FILES:,} files", start_up, 1),
}
"""What it is called, and how many works make one run of it."""


@contextmanager
def _hot(directory: Path) -> Iterator[Bed]:
    bed = Bed(_size(), directory, durability="none")
    with bed.store, _on_this_thread(bed.store):
        bed.commit(bed.filled(bed.live_arrays()))
        bed.flush()
        yield bed


def _size() -> Any:
    return replace(SIZES["normal"], layers=LAYERS, heads=1, head_dim=1, tokens=TOKENS)


@contextmanager
def _on_this_thread(store: BlockStore) -> Iterator[None]:
    pools = store.copy_pool, store.read_pool
    store.copy_pool = store.read_pool = OnThisThread()  # type: ignore[assignment]
    try:
        yield
    finally:
        store.copy_pool, store.read_pool = pools


def profile(name: str) -> str:
    """Return the page of one path."""
    title, path, size = PATHS[name]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as ended:
        works = path(Path(directory))
        ended.callback(works.close)  # type: ignore[attr-defined]
        for _ in range(size):
            next(works)()
        profiler = cProfile.Profile()
        for _ in range(size):
            profiler.runcall(next(works))
        calls = pstats.Stats(profiler).total_calls - size  # type: ignore[attr-defined]
        runs = 0
        with Sampler() as sampler:
            while sampler.lines.total() < SAMPLES:
                runs += 1
                for _ in range(size):
                    sampler.run(next(works))
    return _page(title, calls, sampler.lines, runs)


def _page(title: str, calls: int, lines: Counter[tuple[str, int]], runs: int) -> str:
    total = lines.total()
    told = [
        f"# {title}",
        "",
        f"{calls:,} calls of functions; {total:,} samples in {runs} runs.",
        "",
        "| share | where | line |",
        "|--:|---|---|",
    ]
    for (file, number), hits in lines.most_common(LINES):
        source = linecache.getline(file, number).strip().replace("|", "\\|")
        told.append(f"| {hits / total:.1%} | `{_place(file)}:{number}` | `{source}` |")
    return "\n".join(told) + "\n"


def _place(file: str) -> str:
    path = Path(file)
    if path.is_relative_to(ROOT) and ".venv" not in path.parts:
        return str(path.relative_to(ROOT))
    parts = path.parts
    # What is installed is named from its package on, whatever the environment is called.
    return (
        "/".join(parts[parts.index("site-packages") + 1 :])
        if "site-packages" in parts
        else (path.name)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=folder, metavar="FOLDER", help="a page for each path here")
    known = ", ".join(PATHS)
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"all, or some of {known}")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.paths if name not in PATHS]:
        parser.error(f"there is no path {', '.join(unknown)}: choose among {known}")
    for name in asked.paths or PATHS:
        print(name, "...", file=sys.stderr)
        (asked.folder / f"{name}.md").write_text(profile(name), encoding="utf-8")


if __name__ == "__main__":
    main()
