"""The processes: whether each answers, goes with the others, and has what it needs."""

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from omlx_cache import __version__
from omlx_cache_daemon.doctor.context import Context, Process
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_storage.documents import as_versions

_ENOUGH_DESCRIPTORS = 1024
_PART = 0.8
_EARLIEST = 1_700_000_000


def answering(context: Context) -> list[Finding]:
    """Every process that listens answers."""
    return [_hung(process) for process in context.processes if process.error is not None]


def _hung(process: Process) -> Finding:
    pid = process.pid
    is_stopped = _state(pid) in ("T", "t")
    meaning = "requests go on without it" if process.is_service else "no command reaches it"
    return Finding(
        "error",
        f"{process.name} does not answer"
        + (", since it is stopped (SIGSTOP)" if is_stopped else f": {process.error}"),
        meaning,
        f"kill -CONT {pid}" if is_stopped else f"look at its log; then kill {pid}, and start it",
    )


def disks(context: Context) -> list[Finding]:
    """Every store has the use of its disk."""
    found = []
    for process in context.processes:
        cold = process.ps.get("cold")
        state = cold.get("state") if isinstance(cold, dict) else None
        if isinstance(state, str) and state != "ok":
            found.append(
                Finding(
                    "error" if state.startswith("unavailable") else "warning",
                    f"the disk of {process.name} is not as it should be: {state}",
                    "it works from memory, or writes nothing, until that is over",
                    f"omlx-cache stats --pid {process.pid}",
                )
            )
    return found


def agreement(context: Context) -> list[Finding]:
    """Memory and disk of every store agree on what the disk has."""
    return [
        Finding(
            "error",
            f"{process.name} takes {pages:,} pages for written that the disk does not have",
            "after a restart they are missing, and what follows them cannot be restored",
            "restart it, and report this",
        )
        for process in context.processes
        if isinstance(pages := process.compared.get("unbacked"), int) and pages
    ]


def remotes(context: Context) -> list[Finding]:
    """Every store has the use of the one that machines share."""
    found = []
    for process in context.processes:
        remote = process.ps.get("remote")
        state = remote.get("state") if isinstance(remote, dict) else None
        if isinstance(state, str) and state != "ok":
            found.append(
                Finding(
                    "warning",
                    f"{process.name} does without the store that machines share: {state}",
                    "requests go on with what this machine has",
                    "omlx-cache doctor --remote",
                )
            )
    return found


def versions(context: Context) -> list[Finding]:
    """All processes of the directory are of one version, which is the one that is installed."""
    found = []
    said = {str(process.version) for process in context.users if process.version is not None}
    others = sorted(said - {__version__})
    if len(said) > 1 or others:
        have = ", ".join(f"{p.name} {p.version}" for p in context.users if p.version is not None)
        found.append(
            Finding(
                "warning",
                f"processes of different versions use the directory: {have}; installed is "
                f"{__version__}",
                "each keeps its own promises only",
                "restart the older ones",
            )
        )
    stacks = {tuple(as_versions(p.ps.get("versions")).items()) for p in context.users}
    stacks.discard(())
    if len(stacks) > 1:
        found.append(
            Finding(
                "note",
                f"the stores of the directory have {len(stacks)} sets of versions of mlx and "
                "mlx-lm",
                "they share the budget and no pages",
                "omlx-cache ls shows which pages are whose",
            )
        )
    return found


def descriptors(context: Context) -> list[Finding]:
    """There are enough file descriptors."""
    found = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _ENOUGH_DESCRIPTORS:
        found.append(
            Finding(
                "warning",
                f"a process that is started here may open {soft} files",
                "a server with many connections runs out of them, and misses pages then",
                "ulimit -n 4096",
            )
        )
    for process in context.processes:
        used, most = _descriptors(process.pid)
        if used and used > _PART * most:
            found.append(
                Finding(
                    "warning",
                    f"{process.name} has {used:,} files open, of {most:,} that it may",
                    "beyond that it can neither read pages nor accept connections",
                    "start it with a higher limit: ulimit -n 4096",
                )
            )
    return found


def clock(context: Context) -> list[Finding]:
    """The clock says a time that can be."""
    if time.time() >= _EARLIEST:
        return []
    return [
        Finding(
            "error",
            f"the clock says {time.strftime('%Y-%m-%d')}",
            "pages that are used now look older than all others, and leave first",
            "set the clock",
        )
    ]


def _state(pid: int | None) -> str:
    """Return a process's state as Linux abbreviates it, "" where it is not told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def _descriptors(pid: int | None) -> tuple[int, int]:
    """Return how many descriptors a process has and may have, zeros where that is not told."""
    try:
        used = len(os.listdir(f"/proc/{pid}/fd"))
        with open(f"/proc/{pid}/limits", encoding="ascii") as limits:
            return used, _limit(limits)
    except (OSError, ValueError):
        return 0, 0


def _limit(lines: Iterable[str]) -> int:
    fields = next(line for line in lines if line.startswith("Max open files")).split()
    return int(fields[3]) if fields[3].isdecimal() else 1 << 62
