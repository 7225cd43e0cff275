"""A `bench-kv` report as one HTML file: tables and inline SVG, no scripts, nothing fetched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .kv_codecs import BenchReport, CodecRow, SampleReport
from .kv_table import HEADERS, cells, footnote

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2733; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #d5dde5; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #1c2733; }
.axis { stroke: #8496a8; } .mark { fill: #2467a8; } .bound { stroke: #b4552d; stroke-dasharray: 4; }
"""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 560, 300, 70, 40
_BAR = 24


def render_html(report: BenchReport) -> str:
    """Return the document; every text in it is escaped."""
    sections = "".join(_section(sample, report.disk_gbps) for sample in report.samples)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>KV codecs</title><style>{_STYLE}</style></head><body>"
        f"<h1>KV codecs</h1><p>{escape(footnote(report))}</p>{sections}</body></html>\n"
    )


def _section(sample: SampleReport, disk: float) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in HEADERS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(row)) + "</tr>"
        for row in sample.rows
    )
    skipped = "".join(f"<p>Left out: {escape(line)}</p>" for line in sample.skipped)
    return (
        f"<h2>{escape(sample.name)}</h2><p>{sample.layers} layer(s), {sample.heads} KV heads of "
        f"{sample.dim}, {sample.tokens} tokens, {escape(sample.dtype)}</p>"
        f"<table><tr>{head}</tr>{body}</table>{skipped}"
        f"<h3>Size against error</h3>{_scatter(sample.rows)}"
        f"<h3>Effective restore rate, GB/s (dashed: dense pages)</h3>{_bars(sample.rows, disk)}"
    )


def _scatter(rows: Sequence[CodecRow]) -> str:
    """Plot attention error (or key error, without queries) over bytes per token, log scale."""
    tv = all(row.quality.softmax_tv is not None for row in rows)
    points = [
        (row.codec, row.bytes_per_token, row.quality.softmax_tv if tv else row.quality.key_mse)
        for row in rows
    ]
    lossy = [(name, size, math.log10(error)) for name, size, error in points if error]
    if not lossy:
        return "<p>Nothing was lost.</p>"
    widest = 1.1 * max(size for _, size, _ in lossy)
    low = math.floor(min(error for _, _, error in lossy))
    high = math.ceil(max(error for _, _, error in lossy) + 1e-9)
    marks = []
    for name, size, error in lossy:
        x = _LEFT + size / widest * (_WIDTH - _LEFT - 60)
        y = 20 + (high - error) / (high - low) * (_HEIGHT - _BOTTOM - 20)
        marks.append(
            f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            f'<text x="{x + 7:.1f}" y="{y + 4:.1f}">{escape(name)}</text>'
        )
    for power in range(low, high + 1):
        y = 20 + (high - power) / (high - low) * (_HEIGHT - _BOTTOM - 20)
        marks.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
    title = "softmax total variation" if tv else "relative MSE of keys"
    axes = f"M{_LEFT} 20V{_HEIGHT - _BOTTOM}H{_WIDTH}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{title}">'
        f'<path class="axis" fill="none" d="{axes}"/>{"".join(marks)}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}">0 to {widest:,.0f} bytes per token</text>'
        f'<text x="{_LEFT}" y="12">{title}</text></svg>'
    )


def _bars(rows: Sequence[CodecRow], disk: float) -> str:
    longest = max([disk, *(row.restore_gbps for row in rows)])
    scale = (_WIDTH - _LEFT - 60) / longest
    bars = []
    for index, row in enumerate(rows):
        y, width = 6 + index * _BAR, row.restore_gbps * scale
        bars.append(
            f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(row.codec)}</text>'
            f'<rect class="mark" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 8}"/>'
            f'<text x="{_LEFT + width + 6:.1f}" y="{y + 13}">{row.restore_gbps:.2f}</text>'
        )
    height = 12 + len(rows) * _BAR
    x = _LEFT + disk * scale
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" '
        f'aria-label="restore rates">{"".join(bars)}'
        f'<path class="bound" d="M{x:.1f} 0V{height}"/></svg>'
    )
