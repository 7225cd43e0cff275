"""All checks, one after the other; one that fails itself is a finding."""

from collections.abc import Callable, Sequence

from omlx_cache_daemon.doctor import directory, disk, pages, processes, sockets, software
from omlx_cache_daemon.doctor.context import Context
from omlx_cache_daemon.doctor.finding import Finding

Check = Callable[[Context], list[Finding]]

MACHINE: dict[str, Check] = {
    "variables": software.variables,
    "settings": software.settings,
    "packages": software.packages,
    "clock": processes.clock,
    "memory": software.memory,
    "descriptors": processes.descriptors,
    "runtime directory": sockets.places,
    "sockets": sockets.dead,
    "answers": processes.answering,
    "disks of stores": processes.disks,
    "memory and disk": processes.agreement,
    "remotes of stores": processes.remotes,
}
"""What is about the machine and its processes."""

DIRECTORY: dict[str, Check] = {
    "directory": directory.place,
    "permissions": directory.permissions,
    "writable": disk.writable,
    "file system": disk.kind,
    "times": disk.times,
    "free space": disk.free_space,
    "inodes": disk.inodes,
    "budget file": directory.budget_file,
    "pins file": directory.pins_file,
    "budget": pages.budget,
    "passed over": directory.passed_over,
    "leftovers": directory.leftovers,
    "foreign files": directory.foreign,
    "newest page": pages.newest,
    "checksums": pages.checksums,
    "agreement": pages.agreement,
    "versions": processes.versions,
    "stale pages": software.stale,
}
"""What is about one cold directory."""


def examine(context: Context, checks: dict[str, Check]) -> list[Finding]:
    """Run checks, and return what they found; raises nothing that a check does."""
    found = []
    for name, check in checks.items():
        for finding in _result(context, name, check):
            finding.check = name
            found.append(finding)
    return found


def _result(context: Context, name: str, check: Check) -> Sequence[Finding]:
    try:
        return check(context)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return [
            Finding(
                "warning",
                f"the check {name!r} failed itself: {what}",
                "what it looks for is not known",
                "try again; if it stays so, report it with this line",
            )
        ]


def fix(findings: Sequence[Finding]) -> None:
    """Do what is safe, one after the other; what fails says so. Raises nothing that a fix does."""
    for finding in findings:
        if finding.fix is not None:
            try:
                finding.fixed = finding.fix()
            except Exception as error:
                finding.failed = f"{type(error).__name__}: {error}"
