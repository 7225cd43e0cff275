"""Hits against room as SVG: a line for each policy, and one for the optimum."""

import math
from collections.abc import Sequence

from omlx_cache.settings.sizes import format_size
from omlx_cache.simulate.run import Outcome
from omlx_cache.simulate.svg import Plot

OPTIMUM = "optimum"


def svg(outcomes: Sequence[Outcome]) -> str:
    """Return a plot of the share of tokens served, against the logarithm of all tiers' room."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for outcome in outcomes:
        for name, share in _shares(outcome, outcomes):
            lines.setdefault(name, []).append((outcome.room_bytes, 100 * share))
    rooms = sorted({max(1, outcome.room_bytes) for outcome in outcomes})
    first, last = math.log(rooms[0]), math.log(max(rooms[-1], 2 * rooms[0]))
    plot = Plot(100.0, "%")
    for number, (name, shares) in enumerate(lines.items()):
        points = [
            ((math.log(max(1, room)) - first) / (last - first), share)
            for room, share in sorted(set(shares))
        ]
        plot.dots(number, name, points)
        plot.line(number, points)
    for room in rooms:
        plot.tick((math.log(room) - first) / (last - first), format_size(room))
    return plot.end("tokens of prompts served, by the room of all tiers")


def _shares(outcome: Outcome, outcomes: Sequence[Outcome]) -> list[tuple[str, float]]:
    setup = outcome.setup
    agents = f" {setup.agents}" if len({o.setup.agents for o in outcomes}) > 1 else ""
    written = len({o.setup.write_policy for o in outcomes}) > 1
    name = f"{setup.policy} {setup.write_policy}" if written else setup.policy
    return [(name + agents, outcome.share), (OPTIMUM + agents, outcome.optimum_share)]
