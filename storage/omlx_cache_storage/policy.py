"""Write policies: when a page that memory has goes to the disk. They know pages' ages, no tier."""

from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """What the tiers ask: each field is one moment at which a page may be queued for the disk.

    `on_put`: when it is stored. `on_touch`: when it is used again. `on_refusal`: when the eviction
    policy has no place in memory for it. `on_flush`: a flush writes what is left, and memory evicts
    no page that the disk lacks; without `on_evict_superseded` it does evict one that a longer page
    has replaced. `dirty_share`: the share of the hot tier that pages
    which the disk lacks may take before the oldest of them are queued; 1.0 leaves them alone.
    `idle_seconds`: when nothing was stored or used for so long and the writer is idle, what is left
    is queued. `delay_seconds`: so long after it was stored a page is queued at the latest.
    """

    name: str
    on_put: bool = False
    on_touch: bool = False
    on_evict_superseded: bool = True
    on_refusal: bool = True
    on_flush: bool = True
    dirty_share: float = 1.0
    idle_seconds: float = inf
    delay_seconds: float = inf


THROUGH: Final = WritePolicy("through", on_put=True, on_touch=True, idle_seconds=0.0)
BACK: Final = WritePolicy("back", dirty_share=0.5)
LAZY: Final = replace(
    BACK,
    name="lazy",
    on_evict_superseded=False,
    dirty_share=0.9,
    idle_seconds=60.0,
    delay_seconds=300.0,
)
SECOND_TOUCH: Final = WritePolicy("second_touch", on_touch=True, on_refusal=False, on_flush=False)

WRITE_POLICIES: Final = MappingProxyType({p.name: p for p in (THROUGH, BACK, LAZY, SECOND_TOUCH)})


def write_policy(name: str, *, idle_seconds: float, delay_seconds: float) -> WritePolicy:
    """Return the policy of a name, with these times if it is one that goes by the clock."""
    policy = WRITE_POLICIES[name]
    if policy.delay_seconds == inf:
        return policy
    return replace(policy, idle_seconds=idle_seconds, delay_seconds=delay_seconds)
