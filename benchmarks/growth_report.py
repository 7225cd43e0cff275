"""The tables of how work grows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.growth_rows import GrowthRow, in_words, steepness
from omlx_cache.tools.bench.report import format_ratio, format_time

Series: TypeAlias = Mapping[str, Sequence[GrowthRow]]
"""Rows by what they measure, each at growing lengths."""


def by_series(rows: Iterable[GrowthRow]) -> Series:
    """Return the rows sorted out by what they measure."""
    series: dict[str, list[GrowthRow]] = {}
    for each in rows:
        series.setdefault(each.row.what, []).append(each)
    return series


def markdown(tokens: Series, pages: Series, memory: Mapping[str, float]) -> str:
    """Return two tables: a row for each thing measured, with our time and the ratio at its lengths;
    `memory` has the bytes a page by tier."""
    lines = [*_table(tokens, "tokens"), "", *_table(pages, "pages"), ""]
    lines += [
        f"Memory of what is known of a page, {tier} tier: {nbytes:,.0f} bytes."
        for tier, nbytes in memory.items()
    ]
    lines.append("In brackets: the time of what it is beside, divided by ours.")
    return "\n".join(lines) + "\n"


def _table(series: Series, what: str) -> list[str]:
    counts = sorted({each.length for rows in series.values() for each in rows})
    heads = [f"{count:,} {what}" for count in counts]
    lines = [
        f"| what | beside | {' | '.join(heads)} | grows |",
        f"|---|---|{'--:|' * len(counts)}---|",
    ]
    for name, rows in series.items():
        at = {each.length: each.row for each in rows}
        cells = [
            f"{format_time(at[count].ours)} ({format_ratio(at[count].ratio)})"
            if count in at
            else ""
            for count in counts
        ]
        power = steepness(rows)
        grows = in_words(power) + ("" if power is None else f", power {power:.2f}")
        lines.append(f"| {name} | {rows[0].row.compared_with} | {' | '.join(cells)} | {grows} |")
    return lines
