"""What a simulation serves, against plain models of it; and what the command says."""

import json
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fleet
from kit.examples import examples, some
from kit.output import check_output
from kit.workloads import grown
from omlx_cache.simulate.simulator import (
    Costs,
    Outcome,
    Setup,
    Simulator,
    TierRoom,
    next_uses,
    optimum,
)
from omlx_cache.simulate.traces import Workload
from omlx_cache_daemon.cli import main
from omlx_cache_storage.hot_page import WRITE_POLICIES

TOKEN_BYTES = 1 << 16


def _run(workload: Workload, hot: int, cold: int = 0, written: str = "through") -> Outcome:
    setup = Setup(0, TierRoom(hot * 16, True), TierRoom(cold * 16, True), "lru", written)
    return Simulator(workload, TOKEN_BYTES, Costs()).run(setup)


def _suffix_first(workload: Workload, room: int) -> int:
    """Least recently used, a chain's deep end first, as a plain dict: page -> (use, -depth)."""
    held: dict[int, tuple[int, int]] = {}
    served = 0
    for use, request in enumerate(workload.requests):
        asked = request.pages[: request.asked]
        served += next((n for n, page in enumerate(asked) if page not in held), len(asked))
        held |= {p: (use, -d) for d, p in enumerate(request.pages) if p in held}
        for depth, page in enumerate(request.pages):
            if page not in held and len(held) >= room:
                # Of its own only what lies deeper is given up.
                others = [p for p in held if p not in request.pages]
                deeper = [p for p in held if p in request.pages and -held[p][1] > depth]
                if not others and not deeper:
                    break
                del held[min(others or deeper, key=held.__getitem__)]
            held.setdefault(page, (use, -depth))
    return served


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_least_recently_used_serves_what_a_plain_model_of_it_serves(seed: int, room: int) -> None:
    workload = grown(seed)
    outcome = _run(workload, room)
    expected = _suffix_first(workload, room) * workload.block_size
    assert outcome.tokens == outcome.hot_tokens == expected


@settings(max_examples=examples(10))
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 40))
def test_no_tiers_serve_more_than_the_optimum_of_their_room(seed: int, hot: int, cold: int) -> None:
    for written in WRITE_POLICIES:
        outcome = _run(grown(seed, requests=30), hot, cold, written)
        assert outcome.tokens <= outcome.optimum_tokens


@pytest.mark.parametrize("written", ["through", "lazy"])
def test_a_disk_serves_what_memory_had_no_room_for_and_is_written_once(written: str) -> None:
    workload = grown(5)
    alone, backed = _run(workload, 8), _run(workload, 8, workload.pages, written)
    unbounded = _run(workload, workload.pages, workload.pages)
    assert alone.tokens < backed.tokens
    assert backed.tokens == unbounded.tokens == unbounded.optimum_tokens
    assert backed.read_bytes == backed.cold_tokens * TOKEN_BYTES > 0
    stored = {page for request in workload.requests for page in request.pages}
    assert unbounded.written_bytes == len(stored) * workload.block_size * TOKEN_BYTES


def test_a_deep_token_is_worth_more_than_a_shallow_one_and_reading_costs_of_it() -> None:
    costs = Costs(prefill=1000, doubles=1000, read=1e6)
    assert costs.saved(1, 0) == pytest.approx(0.001, rel=1e-2)
    assert costs.saved(1001, 0) - costs.saved(1000, 0) == pytest.approx(0.002, rel=1e-2)
    assert costs.saved(1, 0) - costs.saved(1, 5_000_000) == pytest.approx(5)


def _best(workload: Workload, room: int) -> int:
    """Try every choice of pages to keep, after each request."""
    requests = workload.requests

    @cache
    def serve(at: int, held: frozenset[int]) -> int:
        if at == len(requests):
            return 0
        pages = requests[at].pages
        hits = next((n for n, page in enumerate(pages) if page not in held), len(pages))
        known = sorted(held | set(pages))
        kept = combinations(known, min(room, len(known)))
        return hits + max(serve(at + 1, frozenset(chosen)) for chosen in kept)

    return serve(0, frozenset())


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("room", [0, 1, 3, 4])
def test_no_choice_of_pages_to_keep_serves_more_than_the_optimum(seed: int, room: int) -> None:
    drawn = grown(seed, requests=6, talks=2)
    short = [r._replace(pages=r.pages[:4], asked=len(r.pages[:4])) for r in drawn.requests]
    workload = Workload(short, drawn.pages, 16)
    assert optimum(workload, room, next_uses(workload)) == _best(workload, room)


@given(st.integers(0, 10**6), st.sampled_from(fleet.RULES))
def test_a_fleet_of_one_is_one_and_a_store_that_keeps_everything_makes_all_one(
    seed: int, rule: str
) -> None:
    work = grown(seed, requests=30)
    little, plenty = (
        Setup(0, TierRoom(pages * 16, True), TierRoom(0), "lru", "through")
        for pages in (20, 10_000)
    )
    token_bytes = fleet.TOKEN_BYTES
    alone = Simulator(work, token_bytes, Costs()).run(little)
    one = fleet.simulate(work, little, 1, rule, TierRoom(0))
    assert (one["local_tokens"], one["remote_tokens"]) == (alone.tokens, 0)
    assert one["sent_bytes"] == one["received_bytes"] == 0
    everything = fleet.simulate(work, plenty, 1, rule, TierRoom(0))
    many = fleet.simulate(work, plenty, 3, rule, None)
    assert many["computed_tokens"] == everything["computed_tokens"]
    assert many["sent_bytes"] == many["remote_bytes"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Sessions that come back to their first part after others have used the memory."""
    path = tmp_path / "sessions.jsonl"
    fields = {"block_tokens": 64, "tool_tokens": 0, "system_tokens": 0}
    requests = [
        {"t": 40.0 * turn, "in": 64 * 30 + 64 * turn, "out": 10, "runs": [1, 30 + turn]}
        for turn in range(12)
    ]
    lines = [json.dumps({"id": name, **fields, "requests": requests}) for name in "abcdef"]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def simulate(trace: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str) -> tuple[int, str]:
        code = main(["simulate", *arguments])
        told = capsys.readouterr()
        return code, told.out or told.err

    return run


def test_the_table_says_what_each_combination_serves_and_which_step_pays(
    simulate: Any, trace: Path
) -> None:
    code, out = simulate(str(trace), "--hot", "4ktok,16ktok", "--agents", "1,3")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("72 requests over ")
    rows = [line.split()[0] for line in lines if "k tokens" in line and " lru " in line]
    assert rows == ["1", "1", "3", "3"]
    assert "With 16k tokens of memory instead of 4k tokens (policy lru; 3 at a time)" in out
    assert "upper bound" in simulate(str(trace), "--model", "gpt-oss-20b")[1]


def test_the_document_has_a_version_and_the_sums_agree(simulate: Any, trace: Path) -> None:
    code, out = simulate(
        str(trace), "--hot", "4ktok", "--cold", "0,1GiB", "--agents", "3", "--format", "json",
        "--write-policy", "through,lazy", "--bytes-per-token", "1024", "--policy", "lru",
    )  # fmt: skip
    assert code == 0
    document = json.loads(out)
    check_output("simulate", document)
    assert (document["schema"], document["requests"]) == (1, 72)
    alone, through, lazy = document["results"]
    assert (alone["write_policy"], alone["written_bytes"]) == (None, 0)
    assert (through["write_policy"], lazy["write_policy"]) == ("through", "lazy")
    for result in document["results"]:
        assert result["hit_tokens"] == result["hot_tokens"] + result["cold_tokens"]
        assert result["hit_tokens"] <= result["optimum_tokens"]
    assert alone["hit_tokens"] < through["hit_tokens"]
    assert through["hot"] == {"bytes": 4096 * 1024, "tokens": 4096}
    nothing = json.loads(simulate(str(trace), "--hot", "0", "--format", "json")[1])["results"]
    assert all(result["hit_tokens"] == result["optimum_tokens"] == 0 for result in nothing)
    named = json.loads(simulate(str(trace), "--model", "Qwen3-8B", "--format", "json")[1])
    assert named["model"] == {"name": "qwen3-8b", "bytes_per_token": 147456}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    some(
        [
            (("nothing.jsonl",), 1, "nothing.jsonl"),
            (("{trace}", "--hot", "4parsecs"), 2, "4parsecs"),
            (("{trace}", "--policy", "clairvoyant"), 2, "clairvoyant"),
            (("{trace}", "--block-size", "100"), 1, "divisor of 64"),
            (("{trace}", "--model", "no/such-model"), 1, "llama-3.1-8b"),
            (("{trace}", "--prefill", "-1"), 2, "positive number"),
            (("{trace}", "--block-size", "65536"), 1, "no prompt of the trace has a complete page"),
            ((), 2, "TRACE"),
        ],
        (("nothing.jsonl",), 1, "nothing.jsonl"),
        (("{trace}", "--block-size", "100"), 1, "divisor of 64"),
    ),
)
def test_what_cannot_be_simulated_is_said_in_a_line(
    simulate: Any, trace: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended, told = simulate(*(a.format(trace=trace) for a in arguments))
    assert (ended, told.count("\n")) == (code, 1)
    assert said in told
