"""Several machines in a simulation: what a shared store serves, and what travels."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.workloads import grown
from omlx_cache.simulate.assignment import NAMES, assignment
from omlx_cache.simulate.costs import Costs
from omlx_cache.simulate.errors import SimulationError
from omlx_cache.simulate.fleet import FleetOutcome, FleetSetup, run_fleet
from omlx_cache.simulate.requests import Request, Workload
from omlx_cache.simulate.run import Room, Setup, Simulator
from omlx_cache.simulate.shapes import Shape
from omlx_cache.simulate.shared import SimulatedRemote
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

SHAPE = Shape("a model", 1 << 16)
SETUP = Setup(0, Room(20 * 16, True), Room(0), "lru", "through")
NOTHING = Room(0)


def _run(workload: Workload, machines: int, assigned: str, remote: Room | None) -> FleetOutcome:
    return run_fleet(workload, SHAPE, FleetSetup(SETUP, machines, assigned, remote))


@given(st.integers(0, 10**6), st.sampled_from(NAMES))
def test_one_machine_without_a_remote_is_the_simulation_of_one(seed: int, assigned: str) -> None:
    workload = grown(seed, requests=30)
    alone = Simulator(workload, SHAPE, Costs()).run(SETUP)
    fleet = _run(workload, 1, assigned, NOTHING)
    assert (fleet.local_tokens, fleet.remote_tokens) == (alone.tokens, 0)
    assert (fleet.sent_bytes, fleet.received_bytes, fleet.remote_bytes) == (0, 0, 0)


@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from(NAMES))
def test_a_store_that_keeps_everything_serves_what_was_ever_computed(
    seed: int, machines: int, assigned: str
) -> None:
    workload = grown(seed, requests=30)
    roomy = Setup(0, Room(10_000 * 16, True), Room(0), "lru", "through")
    everything = run_fleet(workload, SHAPE, FleetSetup(roomy, 1, "request", NOTHING))
    fleet = run_fleet(workload, SHAPE, FleetSetup(roomy, machines, assigned, None))
    # As if all were one machine; each page is sent once, by the first that has it.
    assert fleet.computed_tokens == everything.computed_tokens
    assert fleet.sent_bytes == fleet.remote_bytes
    page = SHAPE.token_bytes * workload.block_size
    assert fleet.received_bytes % page == 0
    assert (fleet.received_bytes == 0) == (fleet.remote_tokens == 0)
    assert 1 / machines <= fleet.most + 1e-9 <= 1 + 1e-9


def test_a_conversation_stays_on_the_machine_that_has_it() -> None:
    requests = [
        Request(float(100 * n), [*range(who * 100, who * 100 + 2 + n // 3)], 2 + n // 3, 500, 0)
        for n in range(12)
        for who in [n % 3]
    ]
    workload = Workload(requests, 300, 16)
    routed = _run(workload, 2, "prefix", NOTHING)
    spread = _run(workload, 2, "request", NOTHING)
    assert routed.local_tokens > spread.local_tokens
    assert assignment("session") is not None
    with pytest.raises(SimulationError, match="request, session, prefix"):
        assignment("nearest")


def test_a_full_store_drops_what_was_used_longest_ago_the_deep_end_first() -> None:
    one, two, three = (
        [PageId(BlockKey(f"{n}{k}".encode()), "paged") for k in "abc"] for n in "123"
    )
    remote = SimulatedRemote(6)
    remote.add(one)
    remote.add(two)
    assert remote.leading(one) == 3
    remote.add(three[:2])
    assert [remote.leading(chain) for chain in (one, two, three)] == [3, 1, 2]
    assert (remote.taken_pages, remote.peak_pages, len(remote)) == (8, 6, 6)


def test_the_command_replays_a_trace_on_several_machines(tmp_path: Path) -> None:
    trace = tmp_path / "chat.jsonl"
    lines = [
        {"timestamp": 1000 * n, "input_length": 1600, "output_length": 5, "hash_ids": [1, 2, 3, n]}
        for n in range(10, 16)
    ]
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = [sys.executable, "-m", "omlx_cache_daemon", "simulate", str(trace)]
    command += ["--machines", "2", "--remote", "0,all", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    fleets = json.loads(run.stdout)["fleets"]
    rules = [(one["assigned"], one["remote"]["limit"]) for one in fleets]
    assert rules == [("request", 0), ("request", None), ("prefix", 0), ("prefix", None)]
    alone, shared = fleets[:2]
    assert shared["computed_tokens"] == alone["computed_tokens"] - 3 * 512
    assert shared["received_bytes"] == shared["remote_tokens"] * 131_072
    assert (
        subprocess.run([*command, "--hot", "1GiB,2GiB"], capture_output=True, timeout=60).returncode
        == 2
    )
