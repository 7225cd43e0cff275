"""The table and the plot of agents that ask at once."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeAlias

from benchmarks.replay_report import percentile
from benchmarks.replay_server import Answer
from omlx_cache.simulate.svg import Plot


class Round(NamedTuple):
    """Agents that asked at once: the seconds until all were answered."""

    seconds: float
    answers: Sequence[Answer]

    @property
    def computed(self) -> int:
        return sum(answer.prompt_tokens - answer.cached_tokens for answer in self.answers)

    def first_token(self, share: float) -> float:
        """Return the time to first token that such a share of the agents do not exceed."""
        return percentile([answer.first_token_s for answer in self.answers], share)


Runs: TypeAlias = Mapping[str, Mapping[int, Sequence[Round]]]
"""Rounds by server and by count of agents."""


def markdown(runs: Runs) -> str:
    """Return a table: a row per server and count of agents, with the medians of its rounds."""
    lines = [
        "| agents | prefix is | computed tokens | TTFT p50 | TTFT max | all answered | "
        "over one agent |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for agents in sorted({agents for counts in runs.values() for agents in counts}):
        for server, counts in runs.items():
            rounds = counts[agents]
            alone = _seconds(counts[min(counts)])
            lines.append(
                f"| {agents} | {server} | {median(r.computed for r in rounds):,.0f} "
                f"| {median(r.first_token(0.5) for r in rounds):.2f} s "
                f"| {median(r.first_token(1.0) for r in rounds):.2f} s "
                f"| {_seconds(rounds):.2f} s | {_seconds(rounds) / alone:.2f}x |"
            )
    return "\n".join(lines) + "\n"


def svg(runs: Runs) -> str:
    """Return a plot: each agent's time to first token, and a line through the medians of the
    slowest agents."""
    every = [
        a
        for counts in runs.values()
        for rounds in counts.values()
        for r in rounds
        for a in r.answers
    ]
    plot = Plot(max(answer.first_token_s for answer in every))
    agents = sorted({agents for counts in runs.values() for agents in counts})
    places = {count: (index + 0.5) / len(agents) for index, count in enumerate(agents)}
    for count, place in places.items():
        plot.tick(place, str(count))
    for number, (server, counts) in enumerate(runs.items()):
        aside = 0.012 * (number - (len(runs) - 1) / 2)
        points = [
            (places[count] + aside, answer.first_token_s)
            for count, rounds in counts.items()
            for each in rounds
            for answer in each.answers
        ]
        plot.dots(number, server, points)
        slowest = [
            (places[count] + aside, median(r.first_token(1.0) for r in counts[count]))
            for count in agents
        ]
        plot.line(number, slowest)
    return plot.end("agents that ask at once, with one new prefix; time to first token")


def _seconds(rounds: Sequence[Round]) -> float:
    return median(each.seconds for each in rounds)
