"""The pages: a sample of them is read, and what stores know is compared with what there is."""

import random
import time

from omlx_cache_daemon.checking import Checked, PageChecker, remove_damaged
from omlx_cache_daemon.doctor.census import Census
from omlx_cache_daemon.doctor.context import Context, Process, ask
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_daemon.render import quantity
from omlx_cache_daemon.replies import Map, count_of
from omlx_cache_storage.cold.catalog import namespace_directories, shard_directories
from omlx_cache_storage.format.names import StoredPage
from omlx_cache_storage.keys import BlockKey

_OF_A_SHARD = 4
_LOOKS = 3
_PAUSE_SECONDS = 0.3
_QUIET_SECONDS = 10.0
"""Nobody writes pages any more of which the newest is so old."""
_FEW = 64
_SLACK_BYTES = 16 * 2**20
"""Stores count small files that may come, and the ledger in full."""


def checksums(context: Context) -> list[Finding]:
    """A sample of pages is what was written: some of each shard, for a bounded time."""
    damaged: list[StoredPage] = []
    unread: list[Checked] = []
    why = ""
    ends = time.monotonic() + context.seconds
    with PageChecker(context.fs) as checker:
        for digest, shard, name in _sample(context):
            if time.monotonic() >= ends:
                break
            checked = checker.check(digest, shard, name)
            if checked is None or checked.verdict == "foreign":
                continue
            context.sampled += 1
            if checked.verdict == "damaged" and checked.page is not None:
                damaged.append(checked.page)
                why = why or str(checked.trouble)
            elif checked.verdict == "unread":
                unread.append(checked)
    found = []
    if damaged:
        found.append(
            Finding(
                "error",
                f"{len(damaged):,} of {context.sampled:,} pages that were read are damaged ({why})",
                "a store that is asked for one computes it again; there may be more",
                f"omlx-cache verify --delete {context.named}",
                lambda: _delete(context, damaged),
            )
        )
    if unread:
        found.append(
            Finding(
                "error",
                f"{len(unread):,} of {context.sampled:,} pages could not be read: {unread[0].file}:"
                f" {unread[0].trouble}",
                "they count as misses; a disk that refuses to read may be failing",
                f"omlx-cache verify {context.named}",
            )
        )
    return found


def agreement(context: Context) -> list[Finding]:
    """Each running store knows as many pages as there are, and counts their bytes."""
    found = []
    for process in context.users if context.exists else ():
        wrong = _disagreement(context, process)
        if wrong:
            found.append(
                Finding(
                    "warning",
                    f"{process.name} {wrong}",
                    "it misses pages that are there, or counts bytes that are not",
                    f"restart it (process {process.pid}): it reads the directory then",
                )
            )
    return found


def budget(context: Context) -> list[Finding]:
    """The directory takes no more than its budget."""
    if context.budget is None or context.census.nbytes <= context.budget.nbytes:
        return []
    if context.users:
        # They evict within seconds.
        time.sleep(_PAUSE_SECONDS)
        if context.count().nbytes <= context.budget.nbytes:
            return []
    used, most = (quantity("bytes", n) for n in (context.census.nbytes, context.budget.nbytes))
    return [
        Finding(
            "warning",
            f"the directory holds {used}, more than its budget of {most}",
            "the next store that opens it evicts what is too much"
            if not context.users
            else "the stores that use it should have evicted what is too much",
            f"omlx-cache prune --to {context.budget.nbytes} {context.named}",
        )
    ]


def _sample(context: Context) -> list[tuple[BlockKey, str, str]]:
    """Return some files of each shard in any order; all of a small directory."""
    chosen = []
    known = namespace_directories(context.directory, context.fs) if context.exists else ()
    for digest, directory in known:
        for shard in shard_directories(directory, context.fs):
            names = [entry.name for entry in context.fs.scan(shard)]
            some = random.sample(names, min(_OF_A_SHARD, len(names)))
            chosen += [(digest, shard, name) for name in some]
    random.shuffle(chosen)
    return chosen


def _delete(context: Context, damaged: list[StoredPage]) -> str:
    count = remove_damaged(context.directory, damaged, context.fs)
    return f"{count:,} deleted; omlx-cache verify --delete looks for more"


def _disagreement(context: Context, process: Process) -> str:
    """Return in words how a store's count differs from what there is, "" if it does not; looks
    again, since both change while it looks."""
    wrong = ""
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE_SECONDS)
        before = _cold(process)
        census = context.count()
        after = _cold(process)
        if before is None or after is None:
            return ""
        counts = [count_of(before, "pages"), count_of(after, "pages")]
        spread = census.writing + _turnover(census)
        least, most = min(counts) - spread, max(counts) + spread
        counted = count_of(after, "bytes")
        slack = _SLACK_BYTES + census.nbytes // 50
        if census.ignored:
            # A page that others may change since the store took it in is still known to it, and is
            # not counted here: a finding of its own, which a restart of the store does not help.
            least, counted = 0, min(counted, census.nbytes)
        if not least <= census.pages <= most:
            wrong = f"knows {count_of(after, 'pages'):,} pages, and there are {census.pages:,}"
        elif abs(counted - census.nbytes) > slack:
            said, real = quantity("bytes", counted), quantity("bytes", census.nbytes)
            wrong = f"counts {said}, and there are {real}"
        else:
            return ""
    return wrong


def _turnover(census: Census) -> int:
    """Return how many pages may have come and gone while they were counted."""
    is_quiet = time.time() - census.latest_ns / 1e9 > _QUIET_SECONDS
    return 0 if is_quiet else _FEW + census.pages // 50


def _cold(process: Process) -> Map | None:
    said = ask(process.store, is_service=process.is_service).ps.get("cold")
    if not isinstance(said, dict) or str(said.get("state")) != "ok":
        return None
    return said


def newest(context: Context) -> list[Finding]:
    """No page was used in the future."""
    ahead = context.census.latest_ns / 1e9 - time.time() if context.exists else 0.0
    if ahead < 3600:
        return []
    return [
        Finding(
            "warning",
            f"a page was last used in the future, {quantity('_s', ahead)} from now",
            "the clock was wrong then, or is wrong now: such pages stay longest",
            "date; then touch the file, or wait",
        )
    ]
