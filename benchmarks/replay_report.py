"""The replay's table and plot."""

from collections.abc import Mapping, Sequence

from benchmarks.replay_server import Answer
from omlx_cache.simulate.svg import Plot


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def markdown(runs: Mapping[str, Mapping[str, Sequence[Answer]]]) -> str:
    """Return a table: a row per server and phase."""
    lines = [
        "| server | phase | requests | cached tokens | TTFT p50 | TTFT p95 | total |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for server, phases in runs.items():
        everything = [answer for answers in phases.values() for answer in answers]
        for phase, answers in {**phases, "all": everything}.items():
            firsts = [answer.first_token_s for answer in answers]
            asked = sum(answer.prompt_tokens for answer in answers)
            cached = sum(answer.cached_tokens for answer in answers)
            lines.append(
                f"| {server} | {phase} | {len(answers)} | {cached / asked:.1%} "
                f"| {percentile(firsts, 0.5) * 1000:.0f} ms | {percentile(firsts, 0.95) * 1000:.0f}"
                f" ms | {sum(answer.total_s for answer in answers):.1f} s |"
            )
    return "\n".join(lines) + "\n"


def svg(runs: Mapping[str, Sequence[Answer]], restart: int) -> str:
    """Return a plot: time to first token of each request in order, with the restart marked."""
    plot = Plot(max(answer.first_token_s for answers in runs.values() for answer in answers))
    last = max(1, max(len(answers) for answers in runs.values()) - 1)
    plot.upright((restart - 0.5) / last, "restart")
    for number, (name, answers) in enumerate(runs.items()):
        points = [(index / last, answer.first_token_s) for index, answer in enumerate(answers)]
        plot.dots(number, name, points)
    return plot.end("request, in order of arrival; time to first token")
