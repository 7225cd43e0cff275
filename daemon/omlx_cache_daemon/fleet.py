"""`omlx-cache simulate --machines`: several machines, with a remote store between them or none."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omlx_cache_daemon.render import duration, table, uses_styles

if TYPE_CHECKING:
    from omlx_cache.simulate.fleet import FleetOutcome
    from omlx_cache.simulate.shapes import Shape

_HEADERS = (
    "MACHINES", "REMOTE", "ASSIGNED BY", "SERVED", "OF IT REMOTE", "COMPUTED", "RECEIVED", "SENT",
    "REMOTE HOLDS", "DISKS WROTE", "ONE COMPUTED",
)  # fmt: skip


def report(outcomes: "Sequence[FleetOutcome]", shape: "Shape") -> str:
    """Return the outcomes as a table, with what they are of above it."""
    from omlx_cache.settings.sizes import format_size
    from omlx_cache.simulate.advice import describe

    first = outcomes[0]
    setup = first.fleet.setup
    disk = describe(setup.cold) if setup.cold.amount else "no disk"
    head = (
        f"{first.requests:,} requests over {duration(first.seconds)}, "
        f"{first.tokens_in:,} tokens of prompts; {shape.name}, "
        f"{format_size(shape.token_bytes)} a token; each machine {describe(setup.hot)} of memory, "
        f"{disk}\n\n"
    )
    return head + table(_HEADERS, [_row(one) for one in outcomes], bold=uses_styles(sys.stdout))


def results(outcomes: "Sequence[FleetOutcome]") -> list[dict[str, object]]:
    """Return the outcomes as JSON has them."""
    return [
        {
            "agents": one.fleet.setup.agents or None,
            "machines": one.fleet.machines,
            "assigned": one.fleet.assigned,
            "remote": _remote(one),
            "policy": one.fleet.setup.policy,
            "tokens_in": one.tokens_in,
            "local_tokens": one.local_tokens,
            "remote_tokens": one.remote_tokens,
            "computed_tokens": one.computed_tokens,
            "share": one.share,
            "received_bytes": one.received_bytes,
            "sent_bytes": one.sent_bytes,
            "remote_bytes": one.remote_bytes,
            "written_bytes": one.written_bytes,
            "largest_share_computed": one.most,
        }
        for one in outcomes
    ]


def _remote(one: "FleetOutcome") -> dict[str, object] | None:
    room = one.fleet.remote
    if room is None:
        return {"limit": None, "unit": None}
    return {"limit": room.amount, "unit": "tokens" if room.is_tokens else "bytes"}


def _row(one: "FleetOutcome") -> tuple[str, ...]:
    from omlx_cache.settings.sizes import format_size
    from omlx_cache.simulate.advice import describe

    room = one.fleet.remote
    has_remote = room is None or bool(room.amount)
    served = one.tokens_in - one.computed_tokens
    return (
        str(one.fleet.machines),
        "all" if room is None else describe(room) if room.amount else "-",
        one.fleet.assigned,
        f"{100 * one.share:.1f} %",
        f"{100 * one.remote_tokens / served:.1f} %" if served else "-",
        f"{one.computed_tokens:,}",
        format_size(one.received_bytes) if has_remote else "-",
        format_size(one.sent_bytes) if has_remote else "-",
        format_size(one.remote_bytes) if has_remote else "-",
        format_size(one.written_bytes),
        f"{100 * one.most:.0f} %",
    )
