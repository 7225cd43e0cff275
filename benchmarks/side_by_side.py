"""Sets the cache beside mlx-lm's own and mlx-vlm's: time to first token, and memory.

    python -m benchmarks.side_by_side --mlx-vlm FOLDER --markdown out.md

Every figure is of a process of its own, and all systems are asked in turns. `make bench-peers`
installs mlx-vlm in a folder of its own and runs this; without it its rows say so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.arguments import at_least, file_to_write, folder
from omlx_cache.settings.sizes import format_size
from omlx_cache.tools.bench.disk import can_forget, forget
from omlx_cache.tools.bench.report import format_time

CHILD_SECONDS = 600
LEAST_TOKENS = 256
"""A block: of less nothing whole is kept."""
KEEPERS = ("omlx-cache", "mlx-lm", "mlx-vlm")


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; 1 when a system restored something else than it was given."""
    args = _parser().parse_args(arguments)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="omlx-side-by-side-", dir=args.dir) as name:
        for tokens in args.tokens:
            runs += _measure(tokens, Path(name), args)
    told = markdown(runs)
    sys.stdout.write(told)
    if args.markdown is not None:
        args.markdown.write_text(told, encoding="utf-8")
    return 1 if differing(runs) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tokens",
        type=at_least(LEAST_TOKENS),
        nargs="+",
        default=[4096, 32_768],
        metavar="N",
        help="prompts of these lengths (default: 4096 32768)",
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=3,
        metavar="N",
        help="the best of so many is told (default: %(default)s)",
    )
    parser.add_argument(
        "--mlx-vlm", type=folder, metavar="FOLDER", help="where mlx-vlm was installed"
    )
    parser.add_argument(
        "--compute",
        type=at_least(0),
        default=4096,
        metavar="N",
        help="compute everything, too, of prompts up to this length (default: %(default)s)",
    )
    parser.add_argument(
        "--dir", type=folder, metavar="DIR", help="measure this disk (default: temporary files')"
    )
    parser.add_argument(
        "--markdown", type=file_to_write, metavar="FILE", help="write the table there too"
    )
    return parser


def _measure(tokens: int, workspace: Path, args: argparse.Namespace) -> Iterator[Run]:
    if tokens <= args.compute:
        yield _ask("nothing", "turns", tokens, workspace, args)
    for turn in range(args.rounds):
        home = workspace / f"{tokens}-{turn}"
        home.mkdir()
        yield _ask("live", "turns", tokens, home, args)
        for phase in PHASES:
            if phase == "dropped" and not can_forget():
                continue
            for system in KEEPERS:
                if phase == "dropped":
                    forget(home)
                yield _ask(system, phase, tokens, home, args)


def _ask(system: str, phase: str, tokens: int, home: Path, args: argparse.Namespace) -> Run:
    """Run one phase in a process of its own."""
    print(f"{tokens:,} tokens, {PHASES[phase]}, {system} ...", file=sys.stderr)
    command = [sys.executable, "-m", "benchmarks.side_child"]
    command += [system, "turns" if phase == "turns" else "restart", str(tokens), str(home)]
    environment = dict(os.environ)
    if system == "mlx-vlm" and args.mlx_vlm is not None:
        # Behind what is there: it has no mlx of its own.
        paths = [environment.get("PYTHONPATH", ""), str(args.mlx_vlm)]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        ended = subprocess.run(
            command,
            env=environment,
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Run(system, phase, tokens, {}, f"no answer within {CHILD_SECONDS} s")
    if ended.returncode:
        return Run(system, phase, tokens, {}, _why(ended.stderr))
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return Run(system, phase, tokens, told)


def _why(stderr: str) -> str:
    """Return the last line of a child's complaints, which says what is missing."""
    lines = stderr.strip().splitlines() or ["failed without a word"]
    if lines[-1].startswith("ModuleNotFoundError: No module named 'mlx_vlm"):
        return "not installed (`make bench-peers`)"
    return lines[-1].replace("|", "/")


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


if __name__ == "__main__":
    raise SystemExit(main())
