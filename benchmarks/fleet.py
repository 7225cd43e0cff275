"""Simulates several machines over one trace: each with its own tiers, and a remote store or none.

    python -m benchmarks.fleet TRACE --machines 1,2,4 --assign request,session,prefix --remote 0,all

Sizes are tokens of a model of 128 KiB a token. Printed is JSON, a line for each combination.
"""

import argparse
import itertools
import json
import sys
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import at_least
from omlx_cache.simulate.replay import Replayed
from omlx_cache.simulate.simulator import Setup, SimulatedMachine, TierRoom
from omlx_cache.simulate.tiers import SimulatedPages
from omlx_cache.simulate.traces import Request, SimulationError, Workload, read_traces, workload
from omlx_cache_storage.cold.catalog import uncollected
from omlx_cache_storage.page import PageId

TOKEN_BYTES = 131_072
BUSY_SECONDS = 30.0
"""How long a request counts as one that its machine is busy with."""
BUSY_TOKENS = 4096
"""So many tokens of a prefix are worth one request more to wait for, as in examples/router.py."""
RULES = ("request", "session", "prefix")


class SimulatedRemote:
    """Holds `limit` pages, without one all; least recently used leaves first, as of the engines
    that people run. Mutable: what it holds, and its counts."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._pages: OrderedDict[PageId, None] = OrderedDict()
        self.taken_pages = 0
        self.peak_pages = 0

    def leading(self, pages: Sequence[PageId]) -> int:
        """Return how many leading pages it has, which are read and so used."""
        count = next((n for n, page in enumerate(pages) if page not in self._pages), len(pages))
        self._use(pages[:count])
        return count

    def add(self, pages: Sequence[PageId]) -> None:
        """Take a chain's pages that it has not; what it has is not sent again."""
        before = len(self._pages)
        self._pages |= dict.fromkeys(pages)
        self.taken_pages += len(self._pages) - before
        self._use(pages)
        while self._limit is not None and len(self._pages) > self._limit:
            self._pages.popitem(last=False)
        self.peak_pages = max(self.peak_pages, len(self._pages))

    def _use(self, pages: Sequence[PageId]) -> None:
        # The root last: of a chain the deep end is the first to leave.
        for page in reversed(pages):
            self._pages.move_to_end(page)


class FleetMachine(SimulatedMachine):
    """One of the machines. Mutable: what it was given, and how much of it was computed."""

    def __init__(self, setup: Setup, work: Workload, pages: SimulatedPages) -> None:
        super().__init__(setup, work, pages)
        self._pages, self._size = pages, work.block_size
        self._latest: deque[float] = deque()
        self.computed = 0

    def serve(self, request: Request) -> Replayed:
        self._latest.append(request.at)
        return super().serve(request)

    def worth(self, request: Request) -> tuple[int, int]:
        """Return how well a request would do here: tokens that are known, less what waits."""
        while self._latest and self._latest[0] < request.at - BUSY_SECONDS:
            self._latest.popleft()
        ids = [self._pages.ids[page] for page in request.pages[: request.asked]]
        known = self.tiers.find_all(ids)
        count = next((at for at, one in enumerate(known) if one is None), len(ids))
        return count * self._size - BUSY_TOKENS * len(self._latest), -self.computed


def simulate(work: Workload, setup: Setup, count: int, rule: str, room: TierRoom | None) -> Any:
    """Return what a workload is served by some machines, in virtual time, as JSON has it. `rule`
    says which machine a request goes to, `room` is the remote store's, None for one that keeps
    everything."""
    if not work.references:
        raise SimulationError("no prompt of the trace has a complete page: nothing is kept")
    nbytes, size = TOKEN_BYTES * work.block_size, work.block_size
    pages = SimulatedPages(work, nbytes)
    machines = [FleetMachine(setup, work, pages) for _ in range(count)]
    remote = SimulatedRemote(None if room is None else room.pages(nbytes, size))
    turns, sessions = itertools.cycle(machines), dict[str, FleetMachine]()
    local = far = received = 0
    with uncollected():
        for request in work.requests:
            if rule == "prefix":
                machine = max(machines, key=lambda one: one.worth(request))
            elif rule == "session" and request.session:
                machine = sessions.get(request.session) or next(turns)
                sessions[request.session] = machine
            else:
                machine = next(turns)
            served = machine.serve(request)
            ids = [pages.ids[page] for page in request.pages]
            # What comes from the store is kept by the tiers as if it was computed.
            came = remote.leading(ids[served.found : request.asked])
            remote.add([page for page in ids if page in set(served.stored)])
            tokens = min(came * size, max(0, request.tokens_in - 1) - served.tokens)
            local, far, received = local + served.tokens, far + tokens, received + came
            machine.computed += request.tokens_in - served.tokens - tokens
    computed = work.tokens_in - local - far
    return {
        "agents": setup.agents or None,
        "machines": count,
        "assigned": rule,
        "remote": "all" if room is None else str(room),
        "tokens_in": work.tokens_in,
        "local_tokens": local,
        "remote_tokens": far,
        "computed_tokens": computed,
        "share": 1 - computed / work.tokens_in,
        "received_bytes": received * nbytes,
        "sent_bytes": remote.taken_pages * nbytes if room is None or room.amount else 0,
        "remote_bytes": remote.peak_pages * nbytes if room is None or room.amount else 0,
        "written_bytes": sum(machine.written_bytes for machine in machines),
        "largest_share_computed": max(machine.computed for machine in machines) / (computed or 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each combination."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--machines", default="1,2,4,8", metavar="N,...")
    parser.add_argument("--assign", default="session,prefix", help=f"of {', '.join(RULES)}")
    parser.add_argument("--remote", default="0,all", metavar="TOKENS,...", help="of the store")
    for name, default, about in (
        ("agents", 16, "sessions at a time"),
        ("block-size", 512, "tokens of a page"),
        ("hot", 1 << 18, "tokens that memory has room for"),
        ("cold", 1 << 20, "tokens that the disk has room for"),
    ):
        parser.add_argument(f"--{name}", type=at_least(0), default=default, metavar="N", help=about)
    args = parser.parse_args(arguments)
    traced = read_traces(args.traces)
    work = workload(traced, agents=args.agents, block_size=args.block_size)
    rooms = TierRoom(args.hot, True), TierRoom(args.cold, True)
    setup = Setup(args.agents, *rooms, "keep", "through")
    lists = (args.machines.split(","), args.assign.split(","), args.remote.split(","))
    for count, rule, size in itertools.product(*lists):
        if rule not in RULES:
            parser.error(f"there is no rule {rule}: choose among {', '.join(RULES)}")
        room = None if size == "all" else TierRoom(int(size), True)
        json.dump(simulate(work, setup, int(count), rule, room), sys.stdout)
        sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
