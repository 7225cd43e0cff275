"""The demo's requests: two prompts, one model, two processes; and its report."""

import argparse
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.disk import can_forget
from omlx_cache.tools.demo_runs import (
    CHUNK,
    Advance,
    DemoError,
    DemoPrompt,
    DemoRun,
    Subject,
    demo_cache,
    demo_settings,
    load_subject,
    run_cached,
    run_in_new_process,
    run_plain,
    unheard,
    warm_up,
)
from omlx_cache.tools.small_model import SEED

FLUSH_SECONDS = 300.0
LONG_SHARE = 0.99
"""Of a conversation longer than the memory so much must be restored."""
DEFAULT_TOKENS = 4096
TURNS = 4
WIDTH = 104
_HEADINGS = (
    "tokens\nrestored",
    "time to\nfirst token",
    "speed",
    "peak\nmemory",
    "same\ntokens",
)


def run(args: argparse.Namespace, print_json: Callable[[object], None], *, styles: bool) -> int:
    """Run the demo, print its table, or its document by `print_json`; return 1 unless every row
    passed. Raises DemoError for input that cannot be used."""
    if args.prompt_file is not None and not args.prompt_file.is_file():
        raise DemoError(f"the prompt file {args.prompt_file}: no such file")
    subject = load_subject(args.model)
    tokens = read_tokens(subject, args.prompt_file, args.tokens)
    first, second = make_prompts(tokens, CacheSettings().block_size, args.new_tokens)
    colours: Any = "auto" if styles else None
    with ExitStack() as stack:
        cold_dir = args.cold_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="omlx-cache-demo-"))
        )
        told = Console(stderr=True, quiet=args.format == "json", color_system=colours)
        progress = stack.enter_context(Progress(console=told))
        report = _report(subject, args.model, first, second, cold_dir, progress)
    if args.format == "json":
        print_json(report.to_dict())
    else:
        console = Console(color_system=colours)
        # A width that fits where the output is no terminal.
        print_report(report, console if console.is_terminal else Console(width=WIDTH))
    return 0 if report.passed else 1


def read_tokens(subject: Subject, prompt_file: Path | None, wanted: int | None) -> list[int]:
    """Return a text file's tokens, cut to `wanted`, or drawn ones. Raises OSError, and DemoError
    for a file that is no text or shorter than `wanted`."""
    if prompt_file is None:
        draw = random.Random(SEED)
        return [draw.randrange(subject.vocabulary) for _ in range(wanted or DEFAULT_TOKENS)]
    try:
        text = prompt_file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DemoError(f"the prompt file {prompt_file} is not UTF-8 text: {error}") from error
    if not text.strip():
        raise DemoError(f"the prompt file {prompt_file} is empty")
    tokens = list(subject.encode(text))
    if wanted is not None and len(tokens) < wanted:
        raise DemoError(
            f"the prompt file {prompt_file} has {len(tokens)} tokens, --tokens asks for {wanted}"
        )
    return tokens[:wanted]


def make_prompts(tokens: Sequence[int], block_size: int, new: int) -> tuple[DemoPrompt, DemoPrompt]:
    """Return two prompts of one length that agree in exactly the first `shared` tokens, some whole
    blocks; the second has the rest backwards. Steps end as `mlx_lm.generate` ends them, the last
    token alone, and at `shared`. Raises DemoError for fewer than two blocks."""
    first = list(tokens)
    length, shared = len(first), len(first) // 2 // block_size * block_size
    if shared == 0:
        raise DemoError(
            f"the prompt has {length} tokens; the demo needs {2 * block_size}, two blocks of "
            f"{block_size} (OMLX_CACHE_BLOCK_SIZE=16 takes shorter ones)"
        )
    rest = [*first[:shared:-1], first[shared]]
    if rest[0] == first[shared]:
        rest[0] = 0 if first[shared] else 1
    ends = sorted({*range(CHUNK, length, CHUNK), shared, length - 1, length})
    return DemoPrompt(first, ends, shared, new), DemoPrompt(
        first[:shared] + rest, ends, shared, new
    )


@dataclass(frozen=True, slots=True)
class DemoRow:
    """A run beside the one of the same prompt, in the same steps, without the cache."""

    title: str
    run: DemoRun
    reference: DemoRun
    prompt_tokens: int
    wanted_tokens: int

    @property
    def same(self) -> bool:
        return list(self.run.new_tokens) == list(self.reference.new_tokens)

    @property
    def passed(self) -> bool:
        """True when the tokens are the same and as much was restored as was there."""
        return self.same and self.run.restored_tokens >= self.wanted_tokens

    @property
    def speedup(self) -> float:
        return self.reference.first_token_seconds / self.run.first_token_seconds


@dataclass(frozen=True, slots=True)
class DemoReport:
    model: str
    new_tokens: int
    kv_bytes: int
    commit_seconds: float
    rows: Sequence[DemoRow]

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "passed": self.passed,
            "kv_bytes": self.kv_bytes,
            "commit_seconds": self.commit_seconds,
            "rows": [
                {
                    "title": row.title,
                    "prompt_tokens": row.prompt_tokens,
                    "speedup": row.speedup,
                    "same_tokens": row.same,
                    **asdict(row.run),
                }
                for row in self.rows
            ],
        }


def _report(
    subject: Subject,
    named: str | None,
    first: DemoPrompt,
    second: DemoPrompt,
    cold_dir: Path,
    progress: Progress,
) -> DemoReport:
    model, length = subject.model, len(first.tokens)

    @contextmanager
    def task(title: str) -> Iterator[Advance]:
        shown = progress.add_task(title, total=length)
        yield lambda tokens: progress.advance(shown, tokens)

    few = min(2 * CHUNK, length)
    warm_up(model, few)
    with task("prefill without the cache") as advance:
        plain, kv_bytes = run_plain(model, first, advance)
    settings = demo_settings(cold_dir, kv_bytes)
    # Runs whose steps end at other places have other bits.
    salt = f"demo {length} {first.shared}"
    with BlockStore(settings, name="demo") as store:
        cache = demo_cache(model, store, first)
        warm_up(model, few, cache)
        with task("the same with the cache, to fill it") as advance:
            _, seconds = run_cached(cache, model, first, salt, advance, commit=True)
        if not store.flush(FLUSH_SECONDS):
            raise DemoError(f"the cold tier in {cold_dir} took no pages: see the log")
        with task("the same prompt, hot tier") as advance:
            hot, _ = run_cached(cache, model, first, salt, advance, commit=True)
        with task("second prompt, half of it shared") as advance:
            half, _ = run_cached(cache, model, second, salt, advance, commit=False)
        little = max(kv_bytes // 10, *(page.info.nbytes for page in store.listing()))
    with task("second prompt without the cache") as advance:
        other, _ = run_plain(model, second, advance)
    times, long_salt = kv_bytes // little, f"{salt} long"
    with task(f"a conversation of {times}x the memory") as advance:
        settings = demo_settings(cold_dir, kv_bytes, hot_bytes=little)
        _grow(model, first, settings, long_salt, advance)
    place = {"prompt": asdict(first), "cold_dir": str(cold_dir), "kv_bytes": kv_bytes}
    place["block_size"] = settings.block_size
    requests = [{**place, "salt": salt}, {**place, "salt": long_salt, "hot_bytes": little}]
    with task("both again, new process, from SSD") as advance:
        cold, long = run_in_new_process(named, requests)
        advance(length)
    whole = length - 1
    rows = (
        DemoRow("without the cache", plain, plain, length, 0),
        DemoRow("same prompt, memory", hot, plain, length, whole),
        DemoRow("new process, SSD", cold, plain, length, whole),
        DemoRow(f"{times}x the memory, SSD", long, plain, length, ceil(LONG_SHARE * whole)),
        DemoRow("half shared, without", other, other, length, 0),
        DemoRow("half shared, memory", half, other, length, first.shared),
    )
    return DemoReport(subject.name, first.new, kv_bytes, seconds, rows)


def _grow(
    model: Any, whole: DemoPrompt, settings: CacheSettings, salt: str, advance: Advance
) -> None:
    """Let a prompt grow turn by turn in a store with little memory."""
    last = len(whole.ends) - 1
    turns = sorted({whole.ends[last * turn // TURNS] for turn in range(1, TURNS + 1)})
    with BlockStore(settings, name="demo") as store:
        cache = demo_cache(model, store, whole)
        for reached, turn in pairwise((0, *turns)):
            ends = [end for end in whole.ends if end <= turn]
            grown = DemoPrompt(whole.tokens[:turn], ends, whole.shared, 1)
            run_cached(cache, model, grown, salt, unheard, commit=True)
            advance(turn - reached)


def print_report(report: DemoReport, console: Console) -> None:
    table = Table(
        title=f"{report.model}: {report.rows[0].prompt_tokens} prompt tokens",
        box=SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("request")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(
            row.title,
            str(row.run.restored_tokens),
            f"{row.run.first_token_seconds * 1e3:,.1f} ms",
            f"{row.speedup:.1f}x",
            f"{row.run.peak_bytes / 2**20:,.1f} MiB",
            "yes" if row.same else "NO",
        )
    console.print(table)
    for row in report.rows:
        if not row.passed:
            console.print(_complaint(row), style="bold red", markup=False)
    if any(round(row.speedup, 1) < 1 for row in report.rows if row.wanted_tokens):
        console.print("This model computes such a prompt faster than it is restored: try --model.")
    disk = "the SSD" if can_forget() else "the system's file cache or the SSD"
    console.print(
        f"Speed and {report.new_tokens} greedy tokens are compared with the same prompt without "
        f"the cache. The KV takes {report.kv_bytes / 2**20:.1f} MiB; most of it was stored while "
        f"it was computed, and the commit took {report.commit_seconds * 1e3:.1f} ms. "
        f"The new process read from {disk}.\n\n"
        "Next, with a model of yours: omlx-cache demo --model PATH_OR_ID. Or serve one, which is "
        "downloaded first (about 5 GB): omlx-cache serve --model mlx-community/Qwen3-8B-4bit",
        markup=False,
    )


def _complaint(row: DemoRow) -> str:
    if not row.same:
        pairs = zip(row.run.new_tokens, row.reference.new_tokens, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(row.run.new_tokens))
        return f"{row.title}: new token {first + 1} differs from the run without the cache."
    return (
        f"{row.title}: {row.run.restored_tokens} tokens restored instead of {row.wanted_tokens} "
        f"({row.run.miss_reason})."
    )
