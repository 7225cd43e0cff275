"""Hostile bytes are refused as what they are: no crash, no hang, no memory beyond their size."""

import os
from collections.abc import Iterator
from itertools import count

import pytest

from kit.examples import examples
from qa.fuzz.__main__ import TARGETS
from qa.fuzz.http import attack
from qa.fuzz.run import Hang, Target, hangs_end, make_input, run

COUNTS = {
    "value": 300,
    "signed": 300,
    "sealed": 300,
    "restored": 300,
    "page-file": 1000,
    "reply": 1500,
    "document": 1500,
}
"""Inputs in every run where 3,000 would take more than a second or two."""


@pytest.fixture(autouse=True)
def _hangs_end() -> Iterator[None]:
    with hangs_end():
        yield


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_crashes_hangs_or_takes_memory(name: str) -> None:
    report = run(TARGETS[name], examples(COUNTS.get(name, 3000)), seed=20)
    shown = [f"input {f.number}: {f.data[:300]!r}\n{f.what}" for f in report.findings]
    assert not report.findings, "\n".join(shown)
    # A target that refuses all, or accepts all, tries nothing.
    assert 0 < report.accepted < report.count


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TARGETS)
def test_none_of_many_inputs_crashes_hangs_or_takes_memory(name: str) -> None:
    seed = int.from_bytes(os.urandom(4))
    report = run(TARGETS[name], 10 * COUNTS.get(name, 10_000), seed)
    assert not report.findings, f"seed {seed}: {report.findings}"


def test_an_input_follows_from_its_seed_and_number() -> None:
    for target in TARGETS.values():
        numbers = range(1000, 1020)
        one, two = ([make_input(target, seed, n) for n in numbers] for seed in (1, 2))
        assert one == [make_input(target, 1, n) for n in numbers]
        assert one != two


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (lambda data: {}["x"], "KeyError"),
        (lambda data: bool(bytearray(2**20)), "were granted"),
        (lambda data: [None for _ in count() if False], Hang.__name__),
    ],
    ids=["crash", "memory", "hang"],
)
def test_the_driver_finds_what_it_looks_for(
    bad: object, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qa.fuzz.run.HANG_SECONDS", 0.2)
    target = Target("bad", lambda: [b"sample"], lambda rng, sample: sample, bad, constant=2**19)  # type: ignore[arg-type]
    (finding,) = run(target, 1).findings
    assert what in finding.what
    assert finding.data == b"sample"


@pytest.mark.parametrize(
    "count",
    [400, pytest.param(50_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])],
)
def test_a_server_takes_requests_as_nobody_should_send_them(count: int) -> None:
    report = attack(count, seed=1)
    assert report.wrong == []
    assert report.statuses[200] > 10
    assert report.statuses[400] > 100
