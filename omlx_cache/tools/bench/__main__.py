"""`make bench`: times what the cache does beside the limits of the machine, in one run."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from omlx_cache.tools.bench.codec_restore import measure_codecs
from omlx_cache.tools.bench.machine import describe
from omlx_cache.tools.bench.others import measure_lookup, measure_recompute, measure_scan
from omlx_cache.tools.bench.report import print_results, write_section
from omlx_cache.tools.bench.rows import Peak, Results, Row
from omlx_cache.tools.bench.sizes import SIZES, Size
from omlx_cache.tools.bench.transfer import measure_cold, measure_hot


def run(size: Size, workspace: Path, say: Callable[[str], None]) -> Results:
    """Measure everything and return it; takes disk for two copies of the KV in `workspace`."""
    rows: list[Row] = []
    peaks: list[Peak] = []
    pages, saved = workspace / "pages", workspace / "mlx-lm.safetensors"
    say("restore and commit, hot")
    for found in (measure_hot(size, pages),):
        rows += found[0]
        peaks += found[1]
    say("restore, cold")
    cold_rows, cold_peaks = measure_cold(size, pages, saved)
    say("codecs")
    cold_rows += measure_codecs(size, workspace / "codecs")
    say("recomputing")
    rows += cold_rows + measure_recompute(size, workspace / "model")
    say("look-up and start-up")
    rows += measure_lookup(size, workspace / "chain")
    rows += measure_scan(size, workspace / "scan")
    return Results(size.name, size.kv_bytes, describe(), tuple(rows), (*peaks, *cold_peaks))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m omlx_cache.tools.bench", description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--write", type=Path, metavar="FILE", help="update this Markdown file")
    parser.add_argument("--dir", type=Path, help="measure this disk (default: temporary files')")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="omlx-cache-bench-", dir=args.dir) as workspace:
        results = run(
            SIZES[args.size], Path(workspace), lambda what: print(f"{what} ...", file=sys.stderr)
        )
    if args.json:
        print(json.dumps(results.to_dict(), indent=2))
    else:
        print_results(results, Console(width=120))
    if args.write is not None:
        write_section(results, args.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
