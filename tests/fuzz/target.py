"""What a target is: where inputs come from, and what must hold for each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

KIB = 1024
MIB = 1024 * KIB
MESSAGE_LIMIT = 4 * KIB
"""What an error may say: it goes into a log line."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of foreign bytes.

    `one` returns whether it accepted an input; it ends an error of the declared family itself, so
    that whatever it raises is a finding. It may take `constant` bytes more than `factor` times the
    input, and `seconds` of the processor. `share` of a count is enough where an input is dear.
    """

    name: str
    samples: Callable[[], Sequence[bytes]]
    vary: Callable[[Random, bytes], bytes]
    one: Callable[[bytes], bool]
    constant: int
    factor: int = 1
    seconds: float = 2.0
    share: float = 1.0


def refused(error: Exception, quoted: int = 0) -> bool:
    """Check a declared error, which may quote so many bytes; return what `one` returns for it."""
    length = len(str(error))
    assert length <= MESSAGE_LIMIT + 6 * quoted, f"a message of {length} characters"
    return False
