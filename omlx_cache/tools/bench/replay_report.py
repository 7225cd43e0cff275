"""The replay's table and plot."""

from collections.abc import Mapping, Sequence
from html import escape

from omlx_cache.tools.bench.replay_server import Answer

WIDTH, HEIGHT, MARGIN = 640, 320, 48
COLOURS = ("#b4512d", "#1f6f8b")


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
    top = max(answer.first_token_s for answers in runs.values() for answer in answers)
    count = max(len(answers) for answers in runs.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]

    def at(index: float, seconds: float) -> tuple[float, float]:
        across = MARGIN + (WIDTH - 2 * MARGIN) * index / max(1, count - 1)
        return across, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * seconds / top

    left, bottom = at(0, 0)
    for share in (0.0, 0.5, 1.0):
        _x, y = at(0, top * share)
        parts.append(
            f'<path d="M{left} {y:.1f}H{WIDTH - MARGIN}" stroke="#dddddd"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:.1f} s</text>'
        )
    x, _y = at(restart - 0.5, 0)
    parts.append(
        f'<path d="M{x:.1f} {MARGIN}V{bottom}" stroke="#555555" stroke-dasharray="4 3"/>'
        f'<text x="{x + 4:.1f}" y="{MARGIN - 6}">restart</text>'
    )
    for number, (name, answers) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [at(index, answer.first_token_s) for index, answer in enumerate(answers)]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        parts.append(
            f'<text x="{left + 8 + 160 * number}" y="{MARGIN - 24}" fill="{colour}">'
            f"{escape(name)}</text>"
        )
    parts.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        "request, in order of arrival; time to first token</text></svg>"
    )
    return "\n".join(parts) + "\n"
