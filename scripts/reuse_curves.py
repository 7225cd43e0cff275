"""Draw hits against room, a panel for each number of agents, from what `omlx-cache simulate` found.

omlx-cache simulate TRACE --agents 1,4,16,64 --hot 64ktok,256ktok,1Mtok --format json > found.json
python scripts/reuse_curves.py docs/reuse.svg found.json [MORE.json ...]
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

WIDTH, HEIGHT = 760, 500
PANEL_WIDTH, PANEL_HEIGHT = 300, 170
LEFT, TOP, GAP_ACROSS, GAP_DOWN = 50, 44, 66, 52
FIRST, LAST = 1 << 16, 1 << 23
COLOURS = {"optimum": "#8a8a8a", "keep": "#b4512d", "lru": "#1f6f8b"}
TICKS = {1 << 16: "64k", 1 << 18: "256k", 1 << 20: "1M", 1 << 22: "4M"}

Curves = dict[int, dict[str, dict[int, float]]]
"""Shares by agents, by policy, by tokens of room."""


def read(paths: Sequence[Path]) -> Curves:
    """Return the shares of results in memory alone."""
    curves: Curves = {}
    for path in paths:
        for result in json.loads(path.read_text(encoding="utf-8"))["results"]:
            tokens = result["hot"]["tokens"]
            if result["write_policy"] is not None or not FIRST <= tokens <= LAST:
                continue
            panel = curves.setdefault(result["agents"], {})
            panel.setdefault(result["policy"], {})[tokens] = result["share"]
            panel.setdefault("optimum", {})[tokens] = result["optimum_share"]
    return curves


def svg(curves: Curves) -> str:
    """Return the plot as a document."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for number, (agents, panel) in enumerate(sorted(curves.items())):
        left = LEFT + number % 2 * (PANEL_WIDTH + GAP_ACROSS)
        top = TOP + number // 2 * (PANEL_HEIGHT + GAP_DOWN)
        parts += _panel(left, top, f"{agents} agent{'s' if agents > 1 else ''}", panel)
    parts += [
        f'<text x="{LEFT + 90 * number}" y="{HEIGHT - 14}" fill="{colour}">{name}</text>'
        for number, (name, colour) in enumerate(COLOURS.items())
    ]
    words = "share of prompts' tokens served, by the tokens that memory holds"
    parts.append(f'<text x="{WIDTH - 40}" y="{HEIGHT - 14}" text-anchor="end">{words}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(left: int, top: int, title: str, panel: dict[str, dict[int, float]]) -> Iterator[str]:
    bottom = top + PANEL_HEIGHT
    yield f'<text x="{left}" y="{top - 10}" font-weight="bold">{title}</text>'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - PANEL_HEIGHT * share
        yield f'<path d="M{left} {y:.1f}H{left + PANEL_WIDTH}" stroke="#dddddd"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>'
    for tokens, words in TICKS.items():
        x = left + _across(tokens)
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{words}</text>'
    for name, colour in COLOURS.items():
        points = [
            (left + _across(tokens), bottom - PANEL_HEIGHT * share)
            for tokens, share in sorted(panel.get(name, {}).items())
        ]
        placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 3"' if name == "optimum" else ""
        yield f'<polyline points="{placed}" fill="none" stroke="{colour}"{dashes}/>'
        for x, y in points:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'


def _across(tokens: int) -> float:
    return PANEL_WIDTH * math.log(tokens / FIRST) / math.log(LAST / FIRST)


if __name__ == "__main__":
    target, *found = (Path(argument) for argument in sys.argv[1:])
    target.write_text(svg(read(found)), encoding="utf-8")
