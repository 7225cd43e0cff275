"""`python -m fuzz [TARGET ...]`: tries inputs and prints a line for each target."""

import argparse
import logging
import sys
from pathlib import Path

from .registry import TARGETS
from .run import hangs_end, keep, limit_memory, make_input, read_corpus, run
from .target import MIB

_MEMORY = 1024 * MIB


def main() -> int:
    """Return 1 when an input did what no input may."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS], help="all by default")
    parser.add_argument("--count", type=int, default=100_000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--corpus", type=Path, help="inputs to begin with; findings go there")
    parser.add_argument("--show", action="store_true", help="print the inputs instead")
    args = parser.parse_args()
    targets = [TARGETS[name] for name in args.target or TARGETS]
    found = 0
    # Every page that fails is worth a line to who runs a server, and none here.
    logging.disable()
    if not args.show:
        limit_memory(_MEMORY)
    for target in targets:
        corpus = read_corpus(args.corpus, target)
        if args.show:
            for number in range(args.first, args.first + args.count):
                print(number, make_input(target, args.seed, number, corpus))
            continue
        with hangs_end():
            count = int(args.count * target.share)
            report = run(target, count, args.seed, first=args.first, corpus=corpus)
        print(report.line(), flush=True)
        found += len(report.findings)
        for finding in report.findings:
            print(f"-- {target.name}, seed {args.seed}, input {finding.number}: "
                  f"{finding.data[:200]!r}\n{finding.what}", flush=True)  # fmt: skip
            if args.corpus is not None:
                print(f"kept as {keep(args.corpus, target, finding)}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
