"""The machine: its software, settings, stores and services."""

import os
import resource
import stat
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from omlx_cache import __version__, reasons
from omlx_cache.control.socket_paths import (
    SERVICE,
    candidates,
    is_listening,
    search_places,
    sockets_in,
    why_unseen,
)
from omlx_cache.identity.namespace import software
from omlx_cache.mlx_lm_versions import UntestedVersion, check
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.derived import memory_to_leave
from omlx_cache.settings.machine import probe, text_of
from omlx_cache.settings.sizes import counted, format_size
from omlx_cache.upkeep.memory import Level, level_of, reader
from omlx_cache_daemon.client import as_map, count_of
from omlx_cache_daemon.doctor.examination import Context, Finding
from omlx_cache_daemon.render import quantity
from omlx_cache_storage.documents import MLX, MLX_LM, as_versions
from omlx_cache_storage.private import is_running, trouble

_ENOUGH_DESCRIPTORS = 1024
_PART = 0.8
_EARLIEST = 1_700_000_000
PRIVATE = 0o700


def variables(context: Context) -> Iterator[Finding]:
    for line in context.misspelt:
        remedy = f"unset {line.partition(':')[0]}"
        yield Finding("error", line, "stores and other commands refuse to start", remedy)


def settings(context: Context) -> Iterator[Finding]:
    known, look = context.settings, "omlx-cache config --here"
    if context.misspelt:
        return
    if not isinstance(known, CacheSettings):
        yield Finding("error", str(known), "no store starts in this shell", "omlx-cache config")
        return
    if known.hot_bytes == 0 and (known.cold_bytes == 0 or known.hot_cache_only):
        yield Finding(
            "error",
            "hot_bytes and cold_bytes are 0" if known.cold_bytes == 0 else "hot_bytes is 0",
            "nothing is kept at all",
            look,
        )
    elif known.cold_bytes == 0 and not known.hot_cache_only:
        yield Finding("warning", "cold_bytes is 0", "nothing outlives the process", look)
    for note in known.notes():
        yield Finding("note", note, "it is not as it was set", look)


def packages(context: Context) -> Iterator[Finding]:
    """mlx-lm is a version that this was tested with, where MLX is installed at all."""
    here = software()
    try:
        if here[MLX] and here[MLX_LM]:
            check("omlx-cache")
    except UntestedVersion as error:
        what, _, remedy = str(error).partition(": ")
        yield Finding("warning", what, "serve and warm refuse to start", remedy)


def clock(context: Context) -> Iterator[Finding]:
    if time.time() < _EARLIEST:
        yield Finding(
            "error",
            f"the clock says {time.strftime('%Y-%m-%d')}",
            "pages that are used now look older than all others, and leave first",
            "set the clock",
        )


def memory(context: Context) -> Iterator[Finding]:
    figures = reader()()
    if level_of(figures, memory_to_leave(probe())) > Level.NORMAL:
        yield Finding(
            "warning",
            f"the machine is short of memory ({quantity('bytes', figures.free_bytes)} free)",
            "stores evict pages from memory",
            "stop something, or lower OMLX_CACHE_HOT_BYTES",
        )
    known = {
        line[0]: int(line[1]) * 1024
        for line in map(str.split, text_of(Path("/proc/meminfo")).splitlines())
        if line[0].startswith("Swap")
    }
    total, free = known.get("SwapTotal:", 0), known.get("SwapFree:", 0)
    if free < total // 10:
        yield Finding(
            "warning",
            f"of {quantity('bytes', total)} swap {quantity('bytes', free)} are free",
            "what is swapped out is slower than computing it again",
            "lower OMLX_CACHE_HOT_BYTES, or stop something",
        )


def descriptors(context: Context) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _ENOUGH_DESCRIPTORS:
        yield Finding(
            "warning",
            f"a process that is started here may open {soft} files",
            "a server with many connections runs out of them, and misses pages then",
            "ulimit -n 4096",
        )
    for process in context.processes:
        try:
            used = len(os.listdir(f"/proc/{process.pid}/fd"))
            most, _ = resource.prlimit(process.pid or 0, resource.RLIMIT_NOFILE)
        except OSError:
            # Elsewhere than on Linux nobody tells.
            continue
        if most != resource.RLIM_INFINITY and used > _PART * most:
            yield Finding(
                "warning",
                f"{process} has {counted(used, 'file')} open, of {most:,} that it may",
                "beyond that it can neither read pages nor accept connections",
                "start it with a higher limit: ulimit -n 4096",
            )


def runtime_directory(context: Context) -> Iterator[Finding]:
    for place in search_places():
        if why := why_unseen(place):
            yield Finding(
                "warning",
                f"{place} {why}",
                "stores that listen there are not found",
                f"ls -ld {place}; or set OMLX_CACHE_RUNTIME_DIR",
            )
        elif place.is_dir() and (wrong := trouble(place, place.lstat(), allowed=PRIVATE)):
            holds_sockets = all(
                stat.S_ISSOCK(path.lstat().st_mode) or path.is_symlink() for path in place.iterdir()
            )
            yield Finding(
                "warning",
                wrong,
                "a store refuses it when other files than sockets lie there",
                f"chmod 700 {place}",
                partial(close, place) if holds_sockets else None,
            )
    existing = [place if place.is_dir() else place.parent for place in candidates()]
    if not any(place.is_dir() and os.access(place, os.W_OK | os.X_OK) for place in existing):
        yield Finding(
            "error",
            "there is no runtime directory that a store could use",
            "no command would reach it",
            "set OMLX_CACHE_RUNTIME_DIR to a short path of your own",
        )


def sockets(context: Context) -> Iterator[Finding]:
    left = [
        known.path
        for place in search_places()
        for known in (*sockets_in(place), *sockets_in(place, SERVICE))
        if not is_running(known.pid) and not is_listening(known.path)
    ]
    if left:
        yield Finding(
            "note",
            f"{counted(len(left), 'socket')} of processes that have ended: {left[0]}",
            "the next store that starts removes those of stores",
            "omlx-cache doctor --fix",
            partial(_remove, left),
        )


def answers(context: Context) -> Iterator[Finding]:
    for process in context.processes:
        if process.error is None:
            continue
        pid = process.pid
        is_stopped = text_of(Path(f"/proc/{pid}/stat")).rpartition(") ")[2][:1] in ("T", "t")
        yield Finding(
            "error",
            f"{process} does not answer"
            + (", since it is stopped (SIGSTOP)" if is_stopped else f": {process.error}"),
            "no command reaches it, and what it serves may hang",
            f"kill -CONT {pid}"
            if is_stopped
            else f"look at its log; then kill {pid}, and start it",
        )


def disks_of_stores(context: Context) -> Iterator[Finding]:
    spare = context.spare_bytes
    for process in context.users:
        cold = None if process.row is None else process.row.cold
        if (
            cold is not None
            and (cold.state == "full" or (cold.state == "ok" and cold.room in ("short", "inodes")))
            and spare > 0
            and not context.lacks_files
        ):
            yield Finding(
                "note",
                f"{process} takes its disk for full or short, which has room now: "
                f"{format_size(spare)} beyond min_free_bytes",
                "it works from memory until it tries again, within a minute",
                "wait a minute. If it stays so, the budget has no room: omlx-cache quota",
            )
        elif cold is not None and context.exists and " gone" in cold.state:
            # The check of the directory has found it.
            yield Finding(
                "note",
                f"{process} does without its disk, and that is there again",
                "it works from memory until it looks again, within a minute",
                "wait a minute; no restart is needed",
            )
        elif cold is not None and cold.state != "ok":
            yield Finding(
                "error" if cold.state.startswith("unavailable") else "warning",
                f"the disk of {process} is not as it should be: {cold.state.partition('. ')[0]}",
                "it works from memory, writes nothing, and tries again within a minute",
                "do what the finding about the directory says; without one, see the disk's own log "
                "(dmesg)",
            )


def writes_of_stores(context: Context) -> Iterator[Finding]:
    for process in context.processes:
        cold = process.part("cold")
        own, held = count_of(cold, "own_limit_bytes"), count_of(cold, "nbytes")
        written, ration = count_of(cold, "day_written_bytes"), count_of(cold, "day_limit_bytes")
        if own and held * 10 >= own * 9:
            yield Finding(
                "warning",
                f"{process} writes no page that takes the directory ({format_size(held)}) above "
                f"its own cold_bytes, {format_size(own)}",
                "its prompts are kept in its memory only; omlx-cache quota does not change that",
                f"omlx-cache config --pid {process.pid} shows who set it: raise it to the "
                f"directory's {format_size(count_of(cold, 'limit_bytes'))}, or leave it out, and "
                "restart",
            )
        if count_of(cold, "rationed_pages") and written * 10 >= ration * 9:
            yield Finding(
                "warning",
                f"{process} has written {format_size(written)} in 24 hours, of daily_write_bytes "
                f"{format_size(ration)}",
                "new pages stay in memory only, until what was written a day ago does not count",
                f"omlx-cache config --pid {process.pid} shows who set it: raise it, or leave it "
                "out for no limit, and restart; or wait",
            )
        if damaged := count_of(cold, "corrupt_pages"):
            yield Finding(
                "note",
                f"{process} has met {counted(damaged, 'damaged page')} since it was started",
                "each was deleted and computed again: the count stays until the process ends. "
                "Several in a week are a failing disk",
                "omlx-cache doctor --all reads every page; then see the disk's own log (dmesg)",
            )


def memory_and_disk(context: Context) -> Iterator[Finding]:
    for process in context.processes:
        if process.unbacked:
            yield Finding(
                "error",
                f"{process} takes {counted(process.unbacked, 'page')} for written that the disk "
                "does not have",
                "after a restart they are missing, and what follows them cannot be restored",
                "restart it, and report this",
            )


def remotes_of_stores(context: Context) -> Iterator[Finding]:
    for process in context.processes:
        remote = None if process.row is None else process.row.remote
        if remote is not None and remote.state != "ok":
            yield Finding(
                "warning",
                f"{process} does without the store that machines share: {remote.state}",
                "requests go on with what this machine has",
                "omlx-cache doctor --remote",
            )


def histories(context: Context) -> Iterator[Finding]:
    for process in context.processes:
        misses = as_map(process.part("requests").get("misses") or {})
        if diverged := count_of(misses, reasons.DIVERGED):
            yield Finding(
                "note",
                f"{counted(diverged, 'request')} of {process} parted from an earlier prompt at one "
                "place, and went on alike: a date or an id that changes",
                "everything behind that place is computed again",
                "omlx-cache log has them as diverged; omlx-cache why NUMBER shows the place",
            )
        if rewritten := count_of(misses, reasons.REWRITTEN):
            flags = None if process.row is None else process.row.service.get("flags")
            keeps = isinstance(flags, list) and "keep_reasoning" in flags
            yield Finding(
                "note",
                f"{counted(rewritten, 'request')} of {process} came with a history that "
                "the client, the chat template or the server's trimming of white space changed",
                "everything behind the first changed answer is computed again",
                "omlx-cache why shows where they part"
                + ("" if keeps else "; for dropped reasoning: serve --keep-reasoning"),
            )


def versions(context: Context) -> Iterator[Finding]:
    rows = [process.row for process in context.users if process.row is not None]
    if {row.version for row in rows} - {__version__}:
        yield Finding(
            "warning",
            "processes of different versions use the directory: "
            + ", ".join(f"{row.title} in process {row.pid} {row.version}" for row in rows)
            + f"; installed is {__version__}",
            "each keeps its own promises only",
            "restart the older ones",
        )
    stacks = {tuple(as_versions(row.versions).items()) for row in rows} - {()}
    if len(stacks) > 1:
        yield Finding(
            "note",
            f"the stores of the directory have {len(stacks)} sets of versions of mlx and mlx-lm",
            "they share the budget and no pages",
            "omlx-cache ls shows which pages are whose",
        )


def close(*paths: str | os.PathLike[str]) -> str:
    for path in paths:
        os.chmod(path, PRIVATE if os.path.isdir(path) else 0o600)
    return f"chmod 700 {paths[0]}" if len(paths) == 1 else f"{len(paths):,} closed to others"


def _remove(left: list[Path]) -> str:
    for path in left:
        path.unlink(missing_ok=True)
    return f"{len(left):,} removed"


MACHINE = (
    variables, settings, packages, clock, memory, descriptors, runtime_directory, sockets, answers,
    writes_of_stores, memory_and_disk, remotes_of_stores, histories,
)  # fmt: skip
