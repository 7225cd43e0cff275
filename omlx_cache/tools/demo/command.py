"""The demo's course: two prompts, one model, two processes."""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import ceil
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from omlx_cache.prefix import PrefixCache
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.demo.child import Request, run_in_new_process
from omlx_cache.tools.demo.errors import DemoError
from omlx_cache.tools.demo.prompts import CHUNK, Prompts, make_prompts, read_tokens
from omlx_cache.tools.demo.report import Report, Row, print_report
from omlx_cache.tools.demo.runs import Advance, Run, run_cached, run_plain, warm_up, warm_up_cache
from omlx_cache.tools.demo.store import demo_cache, demo_salt, demo_settings
from omlx_cache.tools.demo.subject import Subject, load_subject

FLUSH_SECONDS = 300.0
LONG_SHARE = 0.99
"""How much of a conversation longer than the memory must come back."""
WIDTH = 104


def run(args: argparse.Namespace, print_json: Callable[[object], None], *, styles: bool) -> int:
    """Run the demo, print its table, or its document by `print_json`; return 1 unless every row
    passed.

    Blocks for as long as a few prefills take. Raises DemoError for input that cannot be used.
    """
    block_size = CacheSettings().block_size
    if args.prompt_file is not None and not args.prompt_file.is_file():
        raise DemoError(f"the prompt file {args.prompt_file}: no such file")
    subject = load_subject(args.model)
    prompts = make_prompts(read_tokens(subject, args.prompt_file, args.tokens), block_size)
    with ExitStack() as stack:
        cold_dir = args.cold_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="omlx-cache-demo-"))
        )
        progress = stack.enter_context(_progress(hidden=args.format == "json", styles=styles))
        report = _Course(subject, prompts, args.model, args.new_tokens, cold_dir, progress).report()
    if args.format == "json":
        print_json(report.to_dict())
    else:
        print_report(report, _console(styles=styles))
    return 0 if report.passed else 1


def _console(*, styles: bool) -> Console:
    """Return the terminal, or a width that fits where the output is no terminal."""
    console = Console(color_system="auto" if styles else None)
    return console if console.is_terminal else Console(width=WIDTH)


def _progress(*, hidden: bool, styles: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
        console=Console(stderr=True, quiet=hidden, color_system="auto" if styles else None),
    )


class _Course:
    """Runs the requests one after the other and keeps what the report needs."""

    def __init__(
        self,
        subject: Subject,
        prompts: Prompts,
        model: str | None,
        new: int,
        cold_dir: Path,
        progress: Progress,
    ) -> None:
        self._subject = subject
        self._prompts = prompts
        self._model = model
        self._new = new
        self._cold_dir = cold_dir
        self._progress = progress
        self._salt = demo_salt(prompts)
        self._long_salt = f"{self._salt} long"

    def report(self) -> Report:
        first, second, shared = self._prompts.first, self._prompts.second, self._prompts.shared
        few = min(2 * CHUNK, len(first))
        warm_up(self._subject.model, few)
        plain, kv_bytes = self._plain("prefill without the cache", first)
        settings = demo_settings(self._cold_dir, kv_bytes)
        with BlockStore(settings, name="demo") as store:
            cache = demo_cache(self._subject.model, store, len(first), shared)
            warm_up_cache(cache, self._subject.model, few)
            _filled, seconds = self._cached(cache, "the same with the cache, to fill it", first)
            if not store.flush(FLUSH_SECONDS):
                raise DemoError(f"the cold tier in {self._cold_dir} took no pages: see the log")
            hot, _ = self._cached(cache, "the same prompt, hot tier", first)
            half, _ = self._cached(cache, "second prompt, half of it shared", second)
            largest = max(page.info.nbytes for page in store.listing())
        other, _ = self._plain("second prompt without the cache", second)
        little = max(kv_bytes // 10, largest)
        self._grow(kv_bytes, little)
        cold, long = self._in_new_process(kv_bytes, little, settings.block_size)
        length = len(first)
        rows = (
            Row("prefill without the cache", plain, plain, length, 0),
            Row("same prompt, hot tier", hot, plain, length, length - 1),
            Row("new process, from SSD", cold, plain, length, length - 1),
            Row("half shared, hot tier", half, other, length, shared),
            Row(
                f"{kv_bytes // little}x the memory, from SSD",
                long,
                plain,
                length,
                ceil(LONG_SHARE * (length - 1)),
            ),
        )
        return Report(self._subject.name, self._new, kv_bytes, seconds, rows)

    def _plain(self, title: str, tokens: list[int]) -> tuple[Run, int]:
        with self._task(title) as advance:
            return run_plain(self._subject.model, tokens, self._prompts.ends, self._new, advance)

    def _cached(self, cache: PrefixCache, title: str, tokens: list[int]) -> tuple[Run, float]:
        with self._task(title) as advance:
            return run_cached(
                cache,
                self._subject.model,
                tokens,
                self._prompts.ends,
                self._new,
                advance,
                commit=tokens is self._prompts.first,
                salt=self._salt,
            )

    def _grow(self, kv_bytes: int, hot_bytes: int) -> None:
        """Let the first prompt grow turn by turn over a store with so little memory."""
        prompts = self._prompts
        settings = demo_settings(self._cold_dir, kv_bytes, hot_bytes=hot_bytes)
        with (
            BlockStore(settings, name="demo") as store,
            self._task(f"a conversation of {kv_bytes // hot_bytes}x the memory") as advance,
        ):
            cache = demo_cache(self._subject.model, store, len(prompts.first), prompts.shared)
            reached = 0
            for turn in prompts.turns:
                run_cached(
                    cache,
                    self._subject.model,
                    prompts.first[:turn],
                    [end for end in prompts.ends if end <= turn],
                    1,
                    lambda _tokens: None,
                    commit=True,
                    salt=self._long_salt,
                )
                advance(turn - reached)
                reached = turn

    def _in_new_process(self, kv_bytes: int, little: int, block_size: int) -> list[Run]:
        requests = [
            Request(
                str(self._cold_dir),
                self._prompts.first,
                self._prompts.ends,
                self._prompts.shared,
                self._new,
                kv_bytes,
                hot_bytes,
                block_size,
                salt,
            )
            for hot_bytes, salt in ((None, self._salt), (little, self._long_salt))
        ]
        with self._task("both again, new process, from SSD") as advance:
            runs = run_in_new_process(self._model, requests)
            advance(len(self._prompts.first))
            return runs

    @contextmanager
    def _task(self, title: str) -> Iterator[Advance]:
        task = self._progress.add_task(title, total=len(self._prompts.first))
        yield lambda tokens: self._progress.advance(task, tokens)
