"""What the demo tells: one table for people, or one JSON document."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from omlx_cache.tools.demo.runs import Run
from omlx_cache.tools.demo.store import can_forget_file_cache


@dataclass(frozen=True, slots=True)
class Row:
    """A run beside the one that computed the same prompt, in the same steps, without the cache."""

    title: str
    run: Run
    reference: Run
    prompt_tokens: int
    wanted_tokens: int

    @property
    def same(self) -> bool:
        return self.run.new_tokens == self.reference.new_tokens

    @property
    def passed(self) -> bool:
        """True when the tokens are the same and as much was restored as was there."""
        return self.same and self.run.restored_tokens >= self.wanted_tokens

    @property
    def speedup(self) -> float:
        return self.reference.first_token_seconds / self.run.first_token_seconds


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, and what was measured beside them."""

    model: str
    new_tokens: int
    kv_bytes: int
    commit_seconds: float
    rows: Sequence[Row]

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
                    **row.run.to_dict(),
                }
                for row in self.rows
            ],
        }


def print_report(report: Report, console: Console) -> None:
    """Print the table, then what went wrong or what it shows."""
    table = Table(
        title=f"{report.model}: {report.rows[0].prompt_tokens} prompt tokens",
        box=SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("request")
    for heading in (
        "tokens\nrestored",
        "time to\nfirst token",
        "against\nrecomputing",
        "peak\nmemory",
        "same tokens as\nwithout the cache",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(
            row.title,
            str(row.run.restored_tokens),
            f"{row.run.first_token_seconds * 1e3:,.1f} ms",
            f"{row.speedup:.1f}x faster" if row.wanted_tokens else "1.0x",
            f"{row.run.peak_bytes / 2**20:,.1f} MiB",
            "yes" if row.same else "NO",
        )
    console.print(table)
    for row in report.rows:
        if not row.passed:
            console.print(_complaint(row), style="bold red", markup=False)
    disk = "the SSD" if can_forget_file_cache() else "the system's file cache or the SSD"
    console.print(
        f"{report.new_tokens} greedy tokens compared. The KV takes {report.kv_bytes / 2**20:.1f} "
        f"MiB; most of it was stored while it was computed, and the commit took "
        f"{report.commit_seconds * 1e3:.1f} ms. The new process read from {disk}.",
        markup=False,
    )


def _complaint(row: Row) -> str:
    if not row.same:
        pairs = zip(row.run.new_tokens, row.reference.new_tokens, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(row.run.new_tokens))
        return f"{row.title}: new token {first + 1} differs from the run without the cache."
    return (
        f"{row.title}: {row.run.restored_tokens} tokens restored instead of {row.wanted_tokens} "
        f"({row.run.miss_reason})."
    )
