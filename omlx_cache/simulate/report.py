"""Outcomes as a table, as a document, and in words: which step of memory or disk is worth it."""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from omlx_cache.settings.sizes import format_size
from omlx_cache.simulate.simulator import Outcome, TierRoom

NOTHING_SECONDS = 60.0
"""A gain of less than this a day is not worth a line."""
HEADERS = (
    "AGENTS", "MEMORY", "DISK", "POLICY", "WRITTEN", "HITS", "OF IT DISK", "OPTIMUM", "RATIO",
    "SAVED A DAY", "WRITES", "A TOKEN", "EVICTED", "REFUSED",
)  # fmt: skip


def row(outcome: Outcome) -> tuple[str, ...]:
    """Return an outcome's cells."""
    setup, saved = outcome.setup, outcome.saved_each_day
    has_disk = bool(setup.cold.amount)
    return (
        str(setup.agents) if setup.agents else "-",
        str(setup.hot),
        str(setup.cold) if has_disk else "-",
        setup.policy,
        setup.write_policy if has_disk else "-",
        f"{100 * outcome.share:.1f} %",
        f"{100 * outcome.cold_tokens / (outcome.tokens or 1):.1f} %",
        f"{100 * outcome.optimum_share:.1f} %",
        f"{outcome.ratio:.3f}",
        "-" if saved is None else f"{max(0.0, saved) / 3600:.1f} h",
        format_size(outcome.written_bytes) if has_disk else "-",
        format_size(int(outcome.written_per_token)) if has_disk else "-",
        f"{outcome.evicted_pages + outcome.cold_evicted_pages:,}",
        f"{outcome.refused_pages + outcome.cold_refused_pages:,}",
    )


def document(outcome: Outcome) -> dict[str, object]:
    setup = outcome.setup
    return {
        "agents": setup.agents or None,
        "hot": _budget(setup.hot, outcome.hot_bytes),
        "cold": _budget(setup.cold, outcome.cold_bytes),
        "policy": setup.policy,
        "write_policy": setup.write_policy if setup.cold.amount else None,
        "trace_seconds": outcome.workload.seconds,
        "hit_tokens": outcome.tokens,
        "hot_tokens": outcome.hot_tokens,
        "cold_tokens": outcome.cold_tokens,
        "share": outcome.share,
        "optimum_tokens": outcome.optimum_tokens,
        "optimum_share": outcome.optimum_share,
        "ratio": outcome.ratio,
        "saved_seconds": outcome.saved_seconds,
        "saved_seconds_per_day": outcome.saved_each_day,
        "read_bytes": outcome.read_bytes,
        "written_bytes": outcome.written_bytes,
        "written_bytes_per_token": outcome.written_per_token,
        "evicted_pages": outcome.evicted_pages,
        "refused_pages": outcome.refused_pages,
        "cold_evicted_pages": outcome.cold_evicted_pages,
        "cold_refused_pages": outcome.cold_refused_pages,
    }


def _budget(room: TierRoom, nbytes: int) -> dict[str, object]:
    return {"bytes": nbytes, "tokens": room.amount if room.is_tokens else None}


def advice(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each worthwhile step from one size to the next."""
    steps: list[str] = []
    for tier, name in (("hot", "memory"), ("cold", "disk")):
        alike: dict[tuple[object, ...], list[Outcome]] = {}
        for outcome in sorted(outcomes, key=attrgetter(f"{tier}_bytes")):
            others = tuple(value for name, value in outcome.setup._asdict().items() if name != tier)
            alike.setdefault(others, []).append(outcome)
        for group in alike.values():
            steps += [_step(*sizes, tier, name) for sizes in pairwise(group)]
    worth = [step for step in steps if step]
    if steps and not worth:
        return ["No larger size saves anything to speak of on this trace."]
    return worth


def _step(before: Outcome, after: Outcome, tier: str, name: str) -> str:
    """Return the worth of a step, "" for next to nothing."""
    gained, often = after.saved_seconds - before.saved_seconds, "on this trace"
    if before.saved_each_day is not None and after.saved_each_day is not None:
        gained, often = after.saved_each_day - before.saved_each_day, "a day"
    if abs(gained) < NOTHING_SECONDS:
        return ""
    setup = after.setup
    beside = f"{setup.hot} of memory" if tier == "cold" else f"a disk of {setup.cold}"
    where = (
        f"policy {setup.policy}",
        f"{beside}, {setup.write_policy}" if setup.cold.amount else "",
        f"{setup.agents} at a time" if setup.agents else "",
    )
    sizes = f"{getattr(setup, tier)} of {name} instead of {getattr(before.setup, tier)}"
    worth = (
        f"{'save' if gained > 0 else 'lose'} {abs(gained) / 60:,.0f} minutes of computing {often}"
    )
    return (
        f"With {sizes} ({'; '.join(filter(None, where))}) you would {worth} "
        f"({100 * (after.share - before.share):+.1f} points of hits)."
    )
