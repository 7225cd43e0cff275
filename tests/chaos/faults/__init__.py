"""What breaks while requests run: one class for each fault, by its name in the table."""

from .base import Fault
from .clock import ClockJumps
from .directory import Removal
from .disk import FailingDisk, FullDisk, ReadOnlyDisk, SlowDisk
from .files import LiveDamage
from .interrupts import Interrupts
from .limits import FewDescriptors
from .mounts import FewInodes, ReadOnlyRemount, SmallDisk
from .operations import Calm, Operations, Restarts

FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        Calm,
        Operations,
        Restarts,
        FailingDisk,
        FullDisk,
        ReadOnlyDisk,
        SlowDisk,
        LiveDamage,
        Removal,
        ClockJumps,
        Interrupts,
        FewDescriptors,
        SmallDisk,
        FewInodes,
        ReadOnlyRemount,
    )
}

__all__ = ["FAULTS", "Fault"]
