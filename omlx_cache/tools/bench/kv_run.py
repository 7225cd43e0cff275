"""A whole `bench-kv` run: from options to a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from .kv_codecs import ROW_NAMES, BenchReport, RowName, SampleReport, measure
from .kv_data import synthetic_samples
from .kv_timing import disk_read_rate

DISK_BYTES = 256 << 20

PASSAGE = """The harbour master keeps two ledgers. The first lists every ship by name, her port of \
registry, the hour she passed the breakwater and the berth she was given; the second lists what \
came off her: {n} sacks of barley, crates of lamp glass, a piano bound for the school on the hill. \
When the ledgers disagree, and in chapter {n} they do, someone walks down to count again. """


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure. `model` is a path or an id that mlx-lm loads; None takes synthetic KV."""

    codecs: tuple[RowName, ...] = ROW_NAMES
    model: str | None = None
    prompt: str | None = None
    tokens: int = 1024
    heads: int = 8
    dim: int = 128
    dtype: str = "bfloat16"
    dense_last: int | None = None
    disk_dir: Path = Path(".")
    disk_gbps: float | None = None


def run(options: BenchOptions) -> BenchReport:
    """Measure everything; takes seconds, or minutes with a model. Evaluates MLX, writes a
    temporary file of 256 MiB in `disk_dir` unless `disk_gbps` is given.

    Raises OSError from the disk, and ValueError for a prompt or a model that cannot be measured.
    """
    disk = options.disk_gbps or disk_read_rate(options.disk_dir, DISK_BYTES)
    samples = _synthetic(options, disk) if options.model is None else (_model(options, disk),)
    return BenchReport(str(mx.default_device()), disk, samples)


def _synthetic(options: BenchOptions, disk: float) -> tuple[SampleReport, ...]:
    dtype = getattr(mx, options.dtype)
    drawn = synthetic_samples(options.heads, options.tokens, options.dim, dtype)
    return tuple(measure(sample.name, [sample], options.codecs, disk) for sample in drawn)


def _model(options: BenchOptions, disk: float) -> SampleReport:
    from mlx_lm import load

    from .kv_model import ModelProbe

    model, tokenizer = load(options.model)[:2]
    probe = ModelProbe(model, prompt_tokens(tokenizer, options.prompt, options.tokens))
    return measure(
        Path(str(options.model)).name,
        probe.samples(),
        options.codecs,
        disk,
        dense_last=options.dense_last,
        divergence=probe.divergence,
    )


def prompt_tokens(tokenizer: Any, text: str | None, count: int) -> Sequence[int]:
    """Return the first `count` tokens of a text, or of a built-in passage that varies."""
    if text is None:
        text = "".join(PASSAGE.format(n=n) for n in range(1, 2 + count // 40))
    tokens: list[int] = list(tokenizer.encode(text))
    return tokens[:count]
