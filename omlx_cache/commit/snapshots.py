"""Which positions of a prompt deserve a restore point: windows and recurrent state, kept."""

from dataclasses import dataclass
from typing import Protocol


class SnapshotPolicy(Protocol):
    """Decides before a prefill; knows nothing of tiers. A stateless object."""

    def positions(self, *, start: int, stop: int, block_size: int, branch: int | None) -> list[int]:
        """Return ascending positions in (start, stop] to capture while [start, stop) is prefilled.

        `stop` is the prompt's length; `branch` is a boundary where a look-up found known blocks
        without a snapshot.
        """
        ...


@dataclass(frozen=True, slots=True)
class StridePolicy:
    """Every `stride` tokens, the last boundary, the branch point, and one token before the end.

    The N-1 position lets an exact repeat restore all but the token that must be computed. The
    branch point is kept because a second prompt reached it (after Marconi, arXiv 2411.19379).
    """

    stride: int

    def positions(self, *, start: int, stop: int, block_size: int, branch: int | None) -> list[int]:
        step = max(1, -(-self.stride // block_size)) * block_size
        wanted = set(range(step, stop, step))
        wanted.add((stop - 1) // block_size * block_size)
        wanted.add(stop - 1)
        if branch is not None:
            wanted.add(branch)
        return sorted(position for position in wanted if start < position < stop)
