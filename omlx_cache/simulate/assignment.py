"""Which machine a request goes to: in turn, session by session, or where its prefix is."""

from collections import deque
from collections.abc import Callable, Sequence

from omlx_cache.simulate.errors import SimulationError
from omlx_cache.simulate.replay import Replay
from omlx_cache.simulate.requests import Request

BUSY_SECONDS = 30.0
"""How long a request counts as one that its machine is busy with."""
BUSY_TOKENS = 4096
"""So many tokens of a prefix are worth one request more to wait for, as in examples/router.py."""
NAMES = ("request", "session", "prefix")


class Machine:
    """One of the machines: its tiers, and what it was given. Mutable: what it was given."""

    def __init__(self, number: int, replay: Replay) -> None:
        self.number, self.replay = number, replay
        self.computed = 0
        self._latest: deque[float] = deque()

    def serves(self, request: Request, computed: int) -> None:
        """Note a request, and how many tokens of it were computed."""
        self.computed += computed
        self._latest.append(request.at)

    def busy(self, at: float) -> int:
        """Return how many requests it was given lately."""
        while self._latest and self._latest[0] < at - BUSY_SECONDS:
            self._latest.popleft()
        return len(self._latest)


Assignment = Callable[[Request, Sequence[Machine]], Machine]


def assignment(name: str) -> Assignment:
    """Return the rule of that name, with what it remembers; raises SimulationError."""
    if name == "prefix":
        return _by_prefix
    if name == "session":
        return _InTurn(by_session=True)
    if name == "request":
        return _InTurn(by_session=False)
    raise SimulationError(f"there is no assignment {name!r}: there are {', '.join(NAMES)}")


class _InTurn:
    """One machine after the other; all requests of a session, where a trace names them, go to the
    one that got its first. Mutable: whose turn it is."""

    def __init__(self, *, by_session: bool) -> None:
        self._by_session = by_session
        self._sessions: dict[str, int] = {}
        self._turn = 0

    def __call__(self, request: Request, machines: Sequence[Machine]) -> Machine:
        if not self._by_session or not request.session:
            return machines[self._next(len(machines))]
        if request.session not in self._sessions:
            self._sessions[request.session] = self._next(len(machines))
        return machines[self._sessions[request.session]]

    def _next(self, count: int) -> int:
        turn, self._turn = self._turn, (self._turn + 1) % count
        return turn


def _by_prefix(request: Request, machines: Sequence[Machine]) -> Machine:
    def worth(machine: Machine) -> tuple[int, int]:
        known = machine.replay.known_tokens(request) - BUSY_TOKENS * machine.busy(request.at)
        return known, -machine.computed

    return max(machines, key=worth)
