"""`python -m qa.fuzz [TARGET ...]`: tries inputs and prints a line for each target."""

import argparse
import logging
import sys

from kit.units import MIB

from . import files, foreign, restored
from .run import Target, hangs_end, limit_memory, run

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        foreign.ARCHIVE,
        files.PAGE_FILE,
        files.DOCUMENT,
        foreign.REQUEST,
        foreign.REPLY,
        *foreign.VALUES,
        restored.TARGET,
    )
}
MEMORY = 1024 * MIB


def main() -> int:
    """Return 1 when an input did what no input may."""
    parser = argparse.ArgumentParser(prog="python -m qa.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS], help="all by default")
    parser.add_argument("--count", type=int, default=100_000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    args = parser.parse_args()
    found = 0
    # Every page that fails is worth a line to who runs a server, and none here.
    logging.disable()
    limit_memory(MEMORY)
    for target in [TARGETS[name] for name in args.target or TARGETS]:
        with hangs_end():
            report = run(target, max(1, int(args.count * target.share)), args.seed, args.first)
        print(f"{target.name:10} {report.count:9,} inputs, {report.accepted:8,} accepted, "
              f"{len(report.findings)} findings", flush=True)  # fmt: skip
        found += len(report.findings)
        for finding in report.findings:
            print(f"-- {target.name} --seed {args.seed} --first {finding.number} --count 1: "
                  f"{finding.data[:200]!r}\n{finding.what}", flush=True)  # fmt: skip
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
