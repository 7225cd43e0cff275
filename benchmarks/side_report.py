"""The table of systems side by side."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from omlx_cache.settings.sizes import format_size
from omlx_cache.tools.bench.report import format_time

NAMES = {
    ("nothing", "turns"): "no cache: computing everything",
    ("live", "turns"): "the live cache of the turn before (limit)",
    ("omlx-cache", "turns"): "omlx-cache, hot tier",
    ("mlx-lm", "turns"): "mlx-lm `LRUPromptCache`",
    ("mlx-vlm", "turns"): "mlx-vlm APC, memory",
    ("omlx-cache", "restart"): "omlx-cache, cold tier",
    ("mlx-lm", "restart"): "mlx-lm `load_prompt_cache`",
    ("mlx-vlm", "restart"): "mlx-vlm APC, disk",
    ("omlx-cache", "dropped"): "omlx-cache, cold tier",
    ("mlx-lm", "dropped"): "mlx-lm `load_prompt_cache`",
    ("mlx-vlm", "dropped"): "mlx-vlm APC, disk",
}
PHASES = {
    "turns": "second turn",
    "restart": "after a restart, in the file cache",
    "dropped": "after a restart, file cache dropped",
}


class Run(NamedTuple):
    """What a child told of one phase, or why it told nothing."""

    system: str
    phase: str
    tokens: int
    told: dict[str, Any]
    error: str = ""


def markdown(runs: Sequence[Run]) -> str:
    """Return a table: a row for each system, phase and length, the fastest of its rounds."""
    lines = [
        "| tokens | when | kept by | first token | of it restoring | processor | reused "
        "| held before | held then | peak |",
        "|--:|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for tokens, phase, system in _kinds(runs):
        these = [run for run in runs if run[:3] == (system, phase, tokens)]
        name = f"| {tokens:,} | {PHASES[phase]} | {NAMES[system, phase]} |"
        told = [run.told for run in these if run.told]
        if not told:
            lines.append(f"{name} {these[0].error} | | | | | | |")
            continue
        fastest = min(told, key=lambda each: each["seconds"])
        times = (
            format_time(min(each[f"{what}seconds"] for each in told))
            for what in ("", "restored_", "processor_")
        )
        sizes = (format_size(fastest[f"{what}_bytes"]) for what in ("kept", "held", "peak"))
        lines.append(f"{name} {' | '.join(times)} | {fastest['cached']:,} | {' | '.join(sizes)} |")
    return "\n".join([*lines, "", *_answers(runs)]) + "\n"


def differing(runs: Iterable[Run]) -> list[str]:
    """Return who said something else of the next token than the live cache, which is right."""
    known = list(runs)
    right = {run.tokens: run.told["logits"] for run in known if run.system == "live" and run.told}
    wrong = {
        f"{run.system} ({PHASES[run.phase]}, {run.tokens:,} tokens)"
        for run in known
        # Computing everything is another order of additions, and may round otherwise.
        if run.told and run.system != "nothing" and run.told["logits"] != right.get(run.tokens)
    }
    return sorted(wrong)


def _answers(runs: Sequence[Run]) -> list[str]:
    wrong = differing(runs)
    if wrong:
        return [f"Not the logits of the live cache: {', '.join(wrong)}."]
    return ["Every system's logits of the next token are those of the live cache, bit for bit."]


def _kinds(runs: Sequence[Run]) -> list[tuple[int, str, str]]:
    kinds = {(run.tokens, run.phase, run.system) for run in runs}
    names = list(NAMES)
    return sorted(kinds, key=lambda kind: (kind[0], names.index((kind[2], kind[1]))))
