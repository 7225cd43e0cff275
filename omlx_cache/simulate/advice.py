"""What the outcomes say in words: which step of memory or disk is worth it."""

from collections.abc import Sequence
from itertools import groupby, pairwise

from omlx_cache.simulate.run import Outcome, Room

NOTHING_SECONDS = 60.0
"""A gain of less than this a day is not worth a line."""
LEAST_PERCENT = 0.1
"""Nor a policy that serves less than this more."""


def advice(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each step from one size to the next, and one for the best policy."""
    lines = []
    for tier, name in (("hot", "memory"), ("cold", "disk")):
        for _key, group in groupby(
            sorted(outcomes, key=lambda o: _others(o, tier)), key=lambda o: _others(o, tier)
        ):
            steps = sorted(group, key=lambda o: _bytes(o, tier))
            lines += [
                _step(before, after, tier, name)
                for before, after in pairwise(steps)
                if _bytes(before, tier) < _bytes(after, tier)
            ]
    told = [line for line in lines if line]
    if lines and not told:
        told = ["no larger size saves anything to speak of on this trace"]
    return told + _policies(outcomes)


def _others(outcome: Outcome, tier: str) -> tuple[object, ...]:
    """What two outcomes have in common that differ in one tier's size only."""
    return tuple(str(value) for name, value in outcome.setup._asdict().items() if name != tier)


def _bytes(outcome: Outcome, tier: str) -> int:
    return outcome.hot_bytes if tier == "hot" else outcome.cold_bytes


def _step(before: Outcome, after: Outcome, tier: str, name: str) -> str:
    """Return what a step is worth, "" for next to nothing."""
    larger: Room = getattr(after.setup, tier)
    smaller: Room = getattr(before.setup, tier)
    where = _where(after, tier)
    what = f"with {describe(larger)} of {name} instead of {describe(smaller)}{where}"
    shares = after.share - before.share
    more, less = after.saved_each_day(), before.saved_each_day()
    if more is not None and less is not None:
        gained, often = more - less, " of computing a day"
    else:
        gained, often = after.saved_seconds - before.saved_seconds, " of computing on this trace"
    if abs(gained) < NOTHING_SECONDS:
        return ""
    if gained < 0:
        return f"{what} you would lose {spell(-gained)}{often} ({100 * shares:+.1f} points of hits)"
    return f"{what} you would save {spell(gained)}{often} ({100 * shares:+.1f} points of hits)"


def _where(outcome: Outcome, tier: str) -> str:
    setup = outcome.setup
    parts = [f"policy {setup.policy}"]
    if tier == "hot" and setup.cold.amount:
        parts.append(f"a disk of {describe(setup.cold)}, {setup.write_policy}")
    if tier == "cold":
        parts.append(f"{describe(setup.hot)} of memory, {setup.write_policy}")
    if setup.agents:
        parts.append(f"{setup.agents} at a time")
    return f" ({'; '.join(parts)})"


def _policies(outcomes: Sequence[Outcome]) -> list[str]:
    """Return which policy serves most, where several were tried."""
    lines = []
    named = sorted({o.setup.policy for o in outcomes})
    if len(named) > 1:
        sums = {name: sum(o.tokens for o in outcomes if o.setup.policy == name) for name in named}
        best = max(named, key=lambda name: sums[name])
        for other in named:
            if other != best and sums[other]:
                more = 100 * (sums[best] / sums[other] - 1)
                if more < LEAST_PERCENT:
                    continue
                lines.append(f"policy {best} serves {more:.1f} % more tokens than {other}")
    return lines


def describe(room: Room) -> str:
    """Return a budget for people."""
    from omlx_cache.settings.sizes import format_size

    if not room.is_tokens:
        return format_size(room.amount)
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if room.amount % size == 0 and room.amount:
            return f"{room.amount // size}{unit} tokens"
    return f"{room.amount} tokens"


def spell(seconds: float) -> str:
    """Return a time for people: `40 minutes`, `3.5 hours`."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
