"""Why no more of one prompt was restored, with what is known about it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from omlx_cache.requests.words import sentence

Excerpt = tuple[int, ...]


class Elsewhere(NamedTuple):
    """Where a prompt's beginning is stored: what differs, each as (stored, now), and the model."""

    is_model: bool
    changed: Mapping[str, tuple[str, str]]
    label: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """`reason` is one of `omlx_cache.reasons`, None when nothing was left to restore.

    Of `tokens` the first `restored` were restored. `position` tokens are shared with the prompt of
    request `other` (at `other_at`, seconds since the epoch), which has `other_tokens` with its
    answer and was `computing`, `ended` or `cut_off` then (`other_state`; empty when that is not
    known). `here` and `there` are the tokens around the place where they part, the first `before`
    of them equal; `alike` tells that the same text follows, `opening` how far before the end of
    that prompt they part when its answer came back rewritten, negative for within the answer.
    `how` (memory, disk, removed, damaged) and `gone_at` are about what was evicted: both empty for
    what left before the record of this process begins. `changed` has the fields that differ, as
    (stored, now). `detail` says more about `reason`. `str()` has it all in words, with token ids
    for text.
    """

    reason: str | None
    tokens: int
    restored: int
    position: int | None = None
    other: int | None = None
    other_at: float | None = None
    other_tokens: int = 0
    other_state: str = ""
    alike: bool = False
    opening: int | None = None
    how: str = ""
    gone_at: float | None = None
    changed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    stored_model: str = ""
    detail: str = ""
    restore_points: bool = False
    before: int = 0
    here: Excerpt = ()
    there: Excerpt = ()

    @property
    def is_miss(self) -> bool:
        """False when nothing was lost: all that was ever stored of the prompt was restored."""
        return self.reason is not None and self.reason != "new_text"

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON and the control socket."""
        plain = asdict(self)
        plain["changed"] = {name: list(values) for name, values in self.changed.items()}
        plain["here"], plain["there"] = list(self.here), list(self.there)
        return plain

    def __str__(self) -> str:
        return sentence(self.to_dict())
