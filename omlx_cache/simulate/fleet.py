"""Simulates several machines over one workload: each with tiers of its own, all with one remote
store or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from omlx_cache.simulate.assignment import Assignment, Machine, assignment
from omlx_cache.simulate.errors import SimulationError
from omlx_cache.simulate.pages import SimulatedPages
from omlx_cache.simulate.replay import Replay
from omlx_cache.simulate.requests import Workload
from omlx_cache.simulate.run import START_NS, Room, Setup, rooms, simulated_tiers
from omlx_cache.simulate.shapes import Shape
from omlx_cache.simulate.shared import SimulatedRemote
from omlx_cache.simulate.virtual import DirectWriter, VirtualClock
from omlx_cache_storage.cold.catalog import uncollected


class FleetSetup(NamedTuple):
    """What each of `machines` has, how requests are given to them, and the room of the remote
    store: 0 without one, None for one that keeps everything."""

    setup: Setup
    machines: int
    assigned: str
    remote: Room | None


@dataclass(slots=True)
class FleetOutcome:
    """What a workload was served by some machines. Tokens are those of prompts; `received_bytes`
    and `sent_bytes` travelled from the remote store and to it, which held `remote_bytes` at most.
    `most` is the largest share of all computed tokens that one machine computed."""

    fleet: FleetSetup
    requests: int = 0
    tokens_in: int = 0
    local_tokens: int = 0
    remote_tokens: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    remote_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0
    most: float = 0.0

    @property
    def computed_tokens(self) -> int:
        """What was neither on the machine nor at the remote store."""
        return self.tokens_in - self.local_tokens - self.remote_tokens

    @property
    def share(self) -> float:
        """The share of all prompts' tokens that was served."""
        return 1 - self.computed_tokens / self.tokens_in if self.tokens_in else 0.0


def run_fleet(workload: Workload, shape: Shape, fleet: FleetSetup) -> FleetOutcome:
    """Return what a workload is served by some machines, in virtual time; raises SimulationError
    for one that no machine can keep anything of."""
    if not workload.references:
        raise SimulationError("no prompt of the trace has a complete page: nothing is kept")
    nbytes = shape.token_bytes * workload.block_size
    pages = SimulatedPages(workload, nbytes)
    clock = VirtualClock(START_NS)
    remote = _remote(fleet.remote, nbytes, workload.block_size)
    sizes = rooms(fleet.setup, nbytes, workload.block_size)
    replays = []
    for _ in range(fleet.machines):
        tiers = simulated_tiers(fleet.setup, sizes, nbytes, clock)
        replays.append(Replay(tiers, workload, pages, remote=remote))
    outcome = FleetOutcome(
        fleet, len(workload.requests), workload.tokens_in, seconds=workload.seconds
    )
    machines = [Machine(number, replay) for number, replay in enumerate(replays)]
    with uncollected():
        _serve(workload, machines, assignment(fleet.assigned), clock, outcome)
    if remote is not None:
        outcome.sent_bytes = remote.taken_pages * nbytes
        outcome.remote_bytes = remote.peak_pages * nbytes
    for replay in replays:
        writer = replay.tiers.writer
        outcome.written_bytes += 0 if writer is None else writer.usage().written_bytes
    computed = sum(machine.computed for machine in machines)
    outcome.most = max(machine.computed for machine in machines) / computed if computed else 0.0
    return outcome


def _serve(
    workload: Workload,
    machines: Sequence[Machine],
    choose: Assignment,
    clock: VirtualClock,
    outcome: FleetOutcome,
) -> None:
    for request in workload.requests:
        clock.set(START_NS + int(request.at * 1e9))
        machine = choose(request, machines)
        writer = machine.replay.tiers.writer
        if isinstance(writer, DirectWriter):
            writer.tick()
        served = machine.replay.serve(request)
        machine.serves(request, request.tokens_in - served.tokens)
        outcome.local_tokens += served.hot_tokens + served.cold_tokens
        outcome.remote_tokens += served.remote_tokens
        outcome.received_bytes += served.remote_bytes


def _remote(room: Room | None, nbytes: int, block_size: int) -> SimulatedRemote | None:
    if room is None:
        return SimulatedRemote(None)
    return SimulatedRemote(room.pages(nbytes, block_size)) if room.amount else None
