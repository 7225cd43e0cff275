"""Remote stores among the other benchmarks: what `bench remote` shows, as rows beside limits."""

from collections.abc import Callable
from pathlib import Path

from omlx_cache.tools.bench.remote import (
    ALL,
    DELAYS,
    LOOKUP_RUNS,
    LOOKUP_TOKENS,
    Lookup,
    Work,
    measure_remote,
    redis_program,
)
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import Size
from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import ExtraMissing, check_extra

NEEDED = ("redis://127.0.0.1", "file:///share")


def measure_remote_rows(size: Size, directory: Path, say: Callable[[str], None]) -> list[Row]:
    """Measure a Redis server and a directory; nothing, and say why, where no server is installed, a
    client's package is missing, or the store fails."""
    missing = why_not()
    if missing:
        say(f"remote stores are left out: {missing}")
        return []
    directory.mkdir()
    try:
        results = measure_remote(directory, say, _work(size))
    except CacheError as error:
        # A server that does not start shall not cost what was measured before.
        say(f"remote stores are left out: {error}")
        return []
    lookups = ((kind, one) for kind, found in results.lookups.items() for one in found)
    return [*results.rows, *(_row(kind, one) for kind, one in lookups)]


def why_not() -> str:
    """Return what is missing for these rows, "" for nothing."""
    if redis_program() is None:
        return "neither valkey-server nor redis-server is installed"
    try:
        for url in NEEDED:
            check_extra(parse_address(url), signs=True)
    except ExtraMissing as error:
        return str(error)
    return ""


def _work(size: Size) -> Work:
    page_bytes = min(ALL.page_bytes, size.kv_bytes // 2)
    pages = min(ALL.pages, size.kv_bytes // page_bytes)
    # On loopback alone a look-up has nothing to be set beside: a round trip takes no time there.
    delays = DELAYS[1:2] if size.name == "tiny" else DELAYS[1:]
    runs, lookup_runs = 2 * size.runs + 1, min(size.runs, LOOKUP_RUNS)
    return Work(page_bytes, pages, runs, lookup_runs, delays)


def _row(kind: str, one: Lookup) -> Row:
    away = f"{one.delay_seconds * 1e3:.0f} ms each way"
    what = f"remote look-up of {LOOKUP_TOKENS:,} tokens, {kind}, {away}"
    limit = f"{one.phases} round trips there"
    return Row(what, one.seconds, limit, 2 * one.delay_seconds * one.phases, limit=True)
