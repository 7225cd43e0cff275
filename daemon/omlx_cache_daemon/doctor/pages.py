"""The pages: a sample of them is read, or all are, and what stores know is compared with what there
is."""

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial

from omlx_cache import reasons
from omlx_cache.settings.sizes import SMALLEST_COLD_BYTES, counted, duration, format_size
from omlx_cache_daemon.checking import Checked, check_page, check_pages, remove_damaged
from omlx_cache_daemon.client import as_map, count_of
from omlx_cache_daemon.doctor.examination import (
    AskedProcess,
    Context,
    Finding,
    ask,
    take_census,
)
from omlx_cache_daemon.render import quantity
from omlx_cache_daemon.targets import current_versions
from omlx_cache_storage.cold.catalog import (
    namespace_directories,
    read_namespace,
    shard_directories,
    walk_shard,
)
from omlx_cache_storage.cold.small_files import Budget
from omlx_cache_storage.documents import as_versions, label, versions
from omlx_cache_storage.format.names import BUDGET_FILE, ENTRY_BYTES, StoredPage
from omlx_cache_storage.keys import BlockKey

_OF_A_SHARD = 4
_LOOKS = 3
_PAUSE_SECONDS = 0.3
_QUIET_SECONDS = 10.0
"""Nobody writes pages any more of which the newest is so old."""
_FEW = 64
_SLACK_BYTES = 16 * 2**20
"""Stores count small files that may come, and the ledger in full."""
_PAGES_OF_A_PROMPT = 8
"""A budget for fewer pages keeps hardly a prompt."""
_EVICTED = 4
"""So many requests that miss evicted pages are no chance."""
_LATELY_SECONDS = 600.0


def read_all(context: Context, bytes_per_second: int) -> Iterator[int]:
    """Read every page, so many bytes a second at most (0 for no limit), and yield how many each
    takes, its name included."""
    for checked in check_pages(context.directory, fs=context.fs):
        _take(context, checked)
        taken = checked.nbytes + ENTRY_BYTES
        time.sleep(taken / bytes_per_second if bytes_per_second else 0)
        yield taken


def checksums(context: Context) -> Iterator[Finding]:
    """All pages are read, or a sample for a bounded time."""
    if not context.read:
        ends = time.monotonic() + context.seconds
        for path, page in _sample(context):
            if time.monotonic() >= ends:
                break
            checked = check_page(path, page, context.fs)
            if checked is not None:
                _take(context, checked)
    damaged = [one for one in context.wrong if one.verdict == "damaged"]
    unread = [one for one in context.wrong if one.verdict == "unread"]
    if damaged:
        owners = {one.page.namespace for one in damaged if one.page is not None}
        models = sorted(
            {label(read_namespace(context.directory, one)) or one.hex() for one in owners}
        )
        yield Finding(
            "error",
            f"damaged: {len(damaged):,} of {counted(context.read, 'page')} read, of "
            f"{', '.join(models)} ({damaged[0].trouble})",
            "a store that is asked for one computes it again",
            f"omlx-cache doctor --all --fix {context.option}",
            partial(_delete, context, [one.page for one in damaged if one.page is not None]),
            [f"{one.place}: {one.trouble}" for one in damaged],
        )
    if unread:
        yield Finding(
            "error",
            f"unreadable: {len(unread):,} of {counted(context.read, 'page')}: {unread[0].file}: "
            f"{unread[0].trouble}",
            "they count as misses; a disk that refuses to read may be failing",
            f"omlx-cache doctor --all {context.option}",
            files=[f"{one.place}: {one.trouble}" for one in unread],
        )


def _take(context: Context, checked: Checked) -> None:
    context.read += 1
    if checked.verdict != "good":
        context.wrong.append(checked)


def _sample(context: Context) -> list[tuple[str, StoredPage]]:
    """Return some pages of each shard in any order; all of a small directory."""
    chosen = []
    for digest, directory in namespace_directories(context.directory, context.fs):
        for shard in shard_directories(directory, context.fs):
            pages = [
                (one.path, StoredPage(digest, one.name, one.nbytes))
                for one in walk_shard(digest, shard, context.fs)
                if one.name is not None
            ]
            chosen += random.sample(pages, min(_OF_A_SHARD, len(pages)))
    random.shuffle(chosen)
    return chosen


def _delete(context: Context, damaged: Iterable[StoredPage]) -> str:
    return f"{remove_damaged(context.directory, damaged, context.fs):,} deleted"


def budget(context: Context) -> Iterator[Finding]:
    if context.budget is not None:
        yield from _for_a_prompt(context, context.budget)
        for process in context.users:
            yield from _for_process(context, context.budget, process)
        yield from _excess(context, context.budget)


def _for_a_prompt(context: Context, budget: Budget) -> Iterator[Finding]:
    page = (
        context.census.by_namespace.total() // context.census.pages
        if context.census.pages
        else SMALLEST_COLD_BYTES
    )
    if budget.nbytes < _PAGES_OF_A_PROMPT * page:
        yield Finding(
            "warning",
            f"the budget ({format_size(budget.nbytes)}) has room for fewer than "
            f"{_PAGES_OF_A_PROMPT} pages",
            "the disk keeps the beginning of a prompt, or nothing",
            _larger(context, budget.nbytes)
            if _wanted(context) > budget.nbytes
            else f"{context.freeing}. Then omlx-cache quota auto {context.option}: the budget is a "
            "quarter of the free space"
            if budget.set_by == "free space"
            else f"omlx-cache quota auto {context.option}",
        )


def _for_process(context: Context, budget: Budget, process: AskedProcess) -> Iterator[Finding]:
    given, wanted, now = _given(process), _wanted(context), time.time()
    since = max((context.directory / BUDGET_FILE).stat().st_mtime, now - _LATELY_SECONDS)
    evicted = sum(
        one.reason == reasons.EVICTED and one.asked_at >= since for one in process.requests
    )
    longest = max(_conversations(context, [process]), default=0)
    if budget.set_by == "quota" and 2 * budget.nbytes <= given:
        yield Finding(
            "warning",
            f"omlx-cache quota set the budget to {format_size(budget.nbytes)}, and "
            f"{process} was given {format_size(given)}",
            "pages leave sooner than those who set it up expect",
            f"omlx-cache quota auto {context.option} goes by what it was given",
        )
    elif longest > budget.nbytes:
        yield Finding(
            "warning",
            f"one conversation of {process} takes about {format_size(longest)}, and the budget is "
            f"{format_size(budget.nbytes)}",
            "its end is not kept, and is computed again at each request",
            _larger(context, budget.nbytes),
        )
    elif evicted and context.census.nbytes * 10 >= budget.nbytes * 9:
        yield Finding(
            "warning" if evicted >= _EVICTED or wanted >= 2 * budget.nbytes else "note",
            f"{counted(evicted, 'request')} of {process} in the last {duration(now - since)} "
            f"missed pages that had been evicted, and the budget ({format_size(budget.nbytes)}) "
            "is full",
            "the conversations that go on at once need more than it holds, and evict each "
            "other's pages",
            _larger(context, budget.nbytes),
        )
    elif wanted >= 2 * budget.nbytes and any(
        one.reason in (reasons.EVICTED, reasons.NOT_STORED, reasons.NO_DISK)
        and one.asked_at >= now - _LATELY_SECONDS
        for one in process.requests
    ):
        # So far from enough that a changed budget, or one that is not full yet, does not matter.
        yield Finding(
            "warning",
            f"the conversations of the last {duration(_LATELY_SECONDS)} want about "
            f"{format_size(wanted)}, and the budget is {format_size(budget.nbytes)}: {process} "
            "missed pages of theirs",
            "when the budget is full, they evict each other's pages",
            _larger(context, budget.nbytes),
        )


def _given(process: AskedProcess) -> int:
    """Return the cold_bytes that a person gave a process, 0 for none."""
    known = as_map(process.settings.get("cold_bytes") or {"kind": "derived"})
    return 0 if known["kind"] == "derived" else count_of(known, "value")


def _conversations(context: Context, processes: Iterable[AskedProcess]) -> list[int]:
    """Return about how many bytes each conversation takes that processes were asked for lately. A
    request continues the longest one that its prompt may begin with, if that is half of it."""
    lengths = defaultdict[BlockKey, list[int]](list)
    for one in (one for process in processes for one in process.requests):
        if one.asked_at >= time.time() - _LATELY_SECONDS:
            known = lengths[BlockKey(bytes.fromhex(one.namespace))]
            before = [n for n in known if one.prompt_tokens // 2 <= n <= one.prompt_tokens]
            if before:
                known.remove(max(before))
            known.append(one.prompt_tokens + one.generated_tokens)
    census = context.census
    return [
        length * census.by_namespace[namespace] // census.tokens[namespace]
        for namespace, known in lengths.items()
        for length in known
        if census.tokens[namespace]
    ]


def _wanted(context: Context) -> int:
    """Return about how many bytes hold the conversations of lately beside the pins, 0 for none."""
    census, conversations = context.census, sum(_conversations(context, context.users))
    pinned = count_of(context.quota, "pinned_bytes")
    return conversations and conversations + census.nbytes - census.by_namespace.total() + pinned


def _larger(context: Context, limit: int) -> str:
    """Return the command for a budget of twice what is wanted, as conversations grow, or for what
    the disk has room for, if that holds one; where nothing tells, for twice the limit."""
    most, wanted = context.room_bytes, _wanted(context)
    needed = wanted if wanted > limit else 2 * limit
    lacks_room = most < max(_conversations(context, context.users), default=0)
    nbytes = needed if lacks_room else min(max(needed, 2 * wanted), most)
    if nbytes * 10 <= limit * 11:
        return (
            "let fewer conversations go on at once, or use a larger disk (omlx-cache export, and "
            "import there): this one has no room for a larger budget"
        )
    size = format_size(nbytes)
    restarts = "".join(
        f"; then restart {process} with cold_bytes {size} (serve --cold-bytes), too"
        for process in context.users
        if 0 < _given(process) < nbytes
    )
    return (
        (f"{context.freeing}. Then " if lacks_room else "")
        + f"omlx-cache quota {size} {context.option}{restarts}; the conversations that go on want "
        f"about {format_size(needed)}, and the disk has room for {format_size(max(0, most))}"
    )


def _excess(context: Context, budget: Budget) -> Iterator[Finding]:
    # Without pages it is the files around them.
    if not context.census.pages or context.census.nbytes <= budget.nbytes:
        return
    if context.users:
        # They evict within seconds.
        time.sleep(_PAUSE_SECONDS)
        if take_census(context.directory, context.fs).nbytes <= budget.nbytes:
            return
    yield Finding(
        "warning",
        f"the directory holds {quantity('bytes', context.census.nbytes)}, more than its budget of "
        f"{quantity('bytes', budget.nbytes)}",
        "the stores that use it should have evicted what is too much"
        if context.users
        else "the next store that opens it evicts what is too much",
        f"omlx-cache rm --to {budget.nbytes} {context.option}",
    )


def pins(context: Context) -> Iterator[Finding]:
    kept, limit = count_of(context.quota, "pinned_bytes"), context.quota["bytes"]
    if isinstance(limit, int) and kept * 4 >= limit > 0:
        yield Finding(
            "warning" if context.census.nbytes * 10 >= limit * 9 else "note",
            f"pins keep {quantity('bytes', kept)} of the budget of {quantity('bytes', limit)}",
            "all other prompts share the rest, and are evicted sooner",
            f"omlx-cache quota {context.option} shows the pins, and --unpin NAME ends one; to keep "
            f"them: {_larger(context, limit)}",
        )


def newest_page(context: Context) -> Iterator[Finding]:
    ahead = context.census.latest_ns / 1e9 - time.time()
    if ahead >= 3600:
        yield Finding(
            "warning",
            f"a page was last used in the future, {quantity('_s', ahead)} from now",
            "the clock was wrong then, or is wrong now: such pages stay longest",
            "date; then touch the file, or wait",
        )


def stale_pages(context: Context) -> Iterator[Finding]:
    rows = [process.row for process in context.users if process.row is not None]
    current = current_versions(as_versions(row.versions) for row in rows)
    old = [
        name
        for name in context.census.by_namespace
        if (theirs := versions(read_namespace(context.directory, name))) and theirs not in current
    ]
    if current and old:
        size = quantity("bytes", sum(context.census.by_namespace[name] for name in old))
        yield Finding(
            "note",
            f"{counted(len(old), 'namespace')} ({size}) of other versions of mlx, mlx-lm or the "
            "page format",
            "they are not restored, and leave as room is needed",
            f"omlx-cache rm --stale --dry-run {context.option}",
        )


def agreement(context: Context) -> Iterator[Finding]:
    for process in context.users:
        for look in range(_LOOKS):
            # Both change while it looks.
            time.sleep(_PAUSE_SECONDS if look else 0)
            if not (wrong := _disagreement(context, process)):
                break
        else:
            yield Finding(
                "warning",
                f"{process} {wrong}",
                "it misses pages that are there, or counts bytes that are not",
                f"restart it (process {process.pid}): it reads the directory then",
            )


def _disagreement(context: Context, process: AskedProcess) -> str:
    """Return in words how a store's count differs from what there is, "" if it does not."""
    before, census, after = (
        ask(process.store).row,
        take_census(context.directory, context.fs),
        ask(process.store).row,
    )
    rows = [None if row is None else row.cold for row in (before, after)]
    known = [cold for cold in rows if cold is not None and cold.state == "ok"]
    if len(known) < 2:
        return ""
    is_quiet = time.time() - census.latest_ns / 1e9 > _QUIET_SECONDS
    spread = census.writing + (0 if is_quiet else _FEW + census.pages // 50)
    least, told = min(cold.pages for cold in known) - spread, known[1].bytes
    if census.ignored:
        # A page that others may change since the store took it in is still known to it, and is not
        # counted here: a finding of its own, which a restart of the store does not help.
        least, told = 0, min(told, census.nbytes)
    if not least <= census.pages <= max(cold.pages for cold in known) + spread:
        return f"knows {counted(known[1].pages, 'page')}, and the directory has {census.pages:,}"
    if abs(told - census.nbytes) > _SLACK_BYTES + census.nbytes // 50:
        return (
            f"counts {quantity('bytes', told)}, and the directory has "
            f"{quantity('bytes', census.nbytes)}"
        )
    return ""


PAGES = (budget, pins, newest_page, checksums, agreement, stale_pages)
