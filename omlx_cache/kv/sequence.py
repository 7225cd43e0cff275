"""One sequence's place in the pool, its length, and the pool's errors. No MLX."""

from dataclasses import dataclass, field
from enum import Enum


class KVError(Exception):
    """Base of all errors of `omlx_cache.kv`."""


class NoFreeSlotError(KVError):
    """Every slot of the pool is taken by a sequence that has not been released."""


class SequenceTooLongError(KVError, ValueError):
    """A sequence was asked to hold more tokens than it was allocated, or a slot can hold."""


class UnknownSequenceError(KVError, LookupError):
    """A sequence id that was never given out, or that has been released."""


class AppendError(KVError, ValueError):
    """Keys or values of a wrong shape or dtype, or for a layer that does not exist."""


class AdvanceError(KVError, ValueError):
    """An advance past what every layer has appended."""


class SequenceState(Enum):
    """EMPTY -> ACTIVE -> FULL -> RELEASED; release is possible from each."""

    EMPTY = "empty"
    ACTIVE = "active"
    FULL = "full"
    RELEASED = "released"


@dataclass(slots=True)
class Sequence:
    """Mutable: `length`, committed tokens; `pending`, tokens appended beyond it per layer;
    `_leftover`, whether `pending` is the uncommitted part of a round."""

    seq_id: int
    slot: int
    max_len: int
    length: int = 0
    pending: list[int] = field(default_factory=list)
    _leftover: bool = False

    @property
    def state(self) -> SequenceState:
        if self.length == 0:
            return SequenceState.EMPTY
        return SequenceState.FULL if self.length == self.max_len else SequenceState.ACTIVE

    def end_of(self, count: int) -> int:
        """Return where `count` tokens behind the committed ones end, or raise."""
        end = self.length + count
        if end > self.max_len:
            raise SequenceTooLongError(
                f"sequence {self.seq_id} holds {self.length} tokens and was allocated "
                f"{self.max_len}: {count} more do not fit"
            )
        return end

    def note_append(self, layer: int, count: int) -> None:
        """Record an append; it ends a round that was partly committed, in all layers."""
        if self._leftover:
            self.pending = [0] * len(self.pending)
            self._leftover = False
        self.pending[layer] = count

    def advance(self, count: int) -> None:
        """Commit `count` tokens; raises AdvanceError unless every layer has appended them."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise AdvanceError(f"cannot advance by {count!r} tokens: give an integer >= 0")
        for layer, appended in enumerate(self.pending):
            if count > appended:
                raise AdvanceError(
                    f"sequence {self.seq_id}: cannot advance by {count} tokens, layer {layer} "
                    f"has appended {appended} since the last advance"
                )
        self.length += count
        self.pending = [appended - count for appended in self.pending]
        self._leftover = True

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on, appended ones included."""
        if isinstance(length, bool) or not isinstance(length, int):
            raise AdvanceError(f"cannot truncate to {length!r}: give an integer")
        if not 0 <= length <= self.length:
            raise AdvanceError(
                f"sequence {self.seq_id}: cannot truncate to {length} tokens, it holds "
                f"{self.length}"
            )
        self.length = length
        self.pending = [0] * len(self.pending)
