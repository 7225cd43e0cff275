"""What was measured of remote stores, as Markdown and as plain values."""

from collections.abc import Mapping

from omlx_cache.settings.sizes import format_size
from omlx_cache.tools.bench.remote import LOOKUP_TOKENS, RemoteResults
from omlx_cache.tools.bench.report import format_ratio, format_time


def markdown(results: RemoteResults, machine: Mapping[str, str]) -> str:
    """Return two tables: reading beside the client alone, and look-ups from afar."""
    lines = [" ".join(f"{name} {value};" for name, value in machine.items()), ""]
    lines += [
        "| what | bytes | ours | rate | beside | its time | ratio |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    for row in results.rows:
        cells = (
            row.what,
            format_size(row.nbytes),
            format_time(row.ours),
            f"{row.rate():.2f} GB/s",
            row.compared_with,
            format_time(row.other),
            format_ratio(row.ratio),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"| look-up of {LOOKUP_TOKENS:,} tokens | delay each way | time | phases | names | found |",
    ]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for kind, lookups in results.lookups.items():
        for one in lookups:
            delay = f"{one.delay_seconds * 1e3:.0f} ms"
            counts = f"{one.phases} | {one.names:,} | {one.found:,}"
            lines.append(f"| {kind} | {delay} | {format_time(one.seconds)} | {counts} |")
    return "\n".join([*lines, ""])


def document(results: RemoteResults, machine: Mapping[str, str]) -> dict[str, object]:
    """Return it as JSON has it."""
    return {
        "machine": dict(machine),
        "rows": [row.to_dict() for row in results.rows],
        "lookups": {
            kind: [one._asdict() for one in lookups] for kind, lookups in results.lookups.items()
        },
    }
