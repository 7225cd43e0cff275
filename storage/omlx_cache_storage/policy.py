"""Write policies: when a page that memory has goes to the disk. They know pages' ages, no tier."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """What the tiers ask: each field is one moment at which a page may be queued for the disk.

    `on_put`: when it is stored. `on_touch`: when it is used again. `on_evict`: before memory may
    drop it, so that a page which the disk lacks is written instead of lost. `on_flush`: a flush
    writes what is left. `dirty_share`: the share of the hot tier that pages which the disk lacks
    may take before the oldest of them are queued; 1.0 leaves them alone.
    """

    name: str
    on_put: bool = False
    on_touch: bool = False
    on_evict: bool = False
    on_flush: bool = True
    dirty_share: float = 1.0


THROUGH: Final = WritePolicy("through", on_put=True, on_touch=True)
BACK: Final = WritePolicy("back", on_evict=True, dirty_share=0.5)
SECOND_TOUCH: Final = WritePolicy("second_touch", on_touch=True, on_flush=False)

WRITE_POLICIES: Final = MappingProxyType({p.name: p for p in (THROUGH, BACK, SECOND_TOUCH)})
