"""What a check found: how bad it is, what it means, and what helps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Severity = Literal["error", "warning", "note"]
"""`error`: the cache does not work as it should. `warning`: it may soon, or works worse. `note`:
worth knowing, and nothing to worry about."""


@dataclass(slots=True)
class Finding:
    """One thing that is not as it might be.

    `remedy` is a command to type, or what to do. `fix` does it where that is safe, and returns what
    it did; raises OSError, CommandError. `fixed` says so afterwards, `failed` why it could not.
    """

    severity: Severity
    found: str
    meaning: str
    remedy: str
    fix: Callable[[], str] | None = None
    check: str = ""
    fixed: str | None = None
    failed: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {
            "check": self.check,
            "severity": self.severity,
            "found": self.found,
            "meaning": self.meaning,
            "remedy": self.remedy,
            "can_fix": self.fix is not None,
            "fixed": self.fixed,
            "failed": self.failed,
        }


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Return the worst first."""
    order: tuple[Severity, ...] = get_args(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))
