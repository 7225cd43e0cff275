"""The dashboard, the alert rules and the documents name the metrics that there are."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kit.status import process, remote_usage, statistics
from kit.storage import open_store
from kit.trees import ROOT
from omlx_cache import reasons
from omlx_cache.status import metrics
from omlx_cache.status.exposition import exposition
from omlx_cache_daemon.service.upkeep import FIGURES
from omlx_cache_storage import stats
from omlx_cache_storage.measures import MEASURES
from omlx_cache_storage.stats import Histogram

MONITORING = ROOT / "daemon" / "monitoring"
NAME = re.compile(r"\bomlx_cache_[a-z_]+\b")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="apt-get install prometheus"
)


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all samples of a real store and of the service, and those of their families."""
    with open_store(tmp_path_factory.mktemp("cold")) as store:
        real = store.metrics()
    requests = {"misses": {"absent": 1}, "skips": {"no_room": 1}}
    every = statistics(
        {**requests, "prefill_tokens_per_second": {"llama": 9.0}},
        service={**dict.fromkeys(FIGURES, 0), "last_pass_finished": 0},
        remote=remote_usage(),
    )
    assert every.cold is not None
    every = replace(every, cold=replace(every.cold, set_by="store", own_limit_bytes=1))
    text = real + exposition([process(stats=every)]).body.decode()
    return {name for line in text.splitlines() for name in NAME.findall(line.partition("{")[0])}


def _expressions(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key in ("expr", "definition", "query") and isinstance(one, str):
                yield one
            yield from _expressions(one)
    elif isinstance(value, list):
        for one in value:
            yield from _expressions(one)


def test_every_metric_of_the_dashboard_and_of_the_alert_rules_is_exposed(exposed: set[str]) -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    texts = [" ".join(_expressions(dashboard))]
    for file in ("alerts.yml", "alerts_test.yml"):
        texts.append(re.sub(r"alertname: \w+|omlx-cache", "", (MONITORING / file).read_text()))
    for text in texts:
        assert set(NAME.findall(text)) <= exposed
        assert len(set(NAME.findall(text))) > 5
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_every_metric_is_documented_as_it_is(exposed: set[str]) -> None:
    script = ROOT / "scripts" / "metrics_reference.py"
    command = [sys.executable, str(script), "-"]
    written = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    text = (MONITORING / "metrics.md").read_text()
    assert written.stdout == text, f"run python {script}"
    rows = {row.split("`")[1] for row in text.splitlines() if row.startswith("| `omlx_cache_")}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed}
    assert families == rows
    guide = (ROOT / "docs" / "operations.md").read_text()
    assert set(NAME.findall(guide)) <= exposed


def test_every_number_of_the_stats_is_exposed() -> None:
    shown = {tuple(p.split(".")) for metric in metrics.METRICS for p in metric.paths.values()}
    kept_back = {
        # Sums of what is shown by tier, and by reason.
        ("requests", "restored_tokens"),
        ("requests", "rejected_pages"),
        ("cold", "set_by"),
        # Texts that no process shares with another: labels are few.
        ("remote", "engine"),
        ("remote", "where"),
    }
    sections = {
        "hot": stats.HotUsage,
        "cold": stats.ColdUsage,
        "writer": stats.WriterUsage,
        "requests": stats.RequestStats,
        "snapshots": stats.SnapshotStats,
        "memory": stats.MemoryUsage,
        "remote": stats.RemoteUsage,
    }
    there = {(name, field.name) for name, kind in sections.items() for field in fields(kind)}
    assert there - shown == kept_back
    assert {("service", name) for name in FIGURES} <= shown


def test_labels_are_bounded_whatever_a_process_says() -> None:
    many = {f"reason-{n}": 1 for n in range(1000)}
    models = {f'{"m" * 300}{n}\n"\\': 1.0 for n in range(1000)}
    bad = statistics(
        {"misses": many, "skips": many, "prefill_tokens_per_second": models},
        histograms={f"h_{chr(97 + n)}_seconds": Histogram(((0.1, 1),), 2.5, 4) for n in range(26)},
    )
    assert bad.cold is not None
    cold = replace(bad.cold, state="exploded: \n", patience_seconds=float("nan"))
    bad = replace(bad, cold=cold)
    shown = [process(stats=bad), process(stats=bad), process(2, "n\ud800\n" * 100, stats=None)]
    families = {f.name: f for f in parse_text(exposition(shown).body.decode())}
    assert len(families["omlx_cache_misses"].samples) == 2
    assert {s.labels["reason"] for s in families["omlx_cache_misses"].samples} == {"other"}
    named = {s.labels["model"] for s in families["omlx_cache_prefill_tokens_per_second"].samples}
    assert len(named) == 32
    assert max(map(len, named)) == 256
    assert not [name for name in families if name.startswith("omlx_cache_h_")]
    states = [s for s in families["omlx_cache_cold_state"].samples if s.value]
    assert {s.labels["state"] for s in states} == {"other"}
    patience = families["omlx_cache_patience_seconds"].samples
    assert {sample.labels["tier"] for sample in patience} == {"hot"}
    ups = {(s.labels["pid"], s.labels["store"]): s.value for s in families["omlx_cache_up"].samples}
    assert len(ups) == 3
    assert ups["1", "serve"] == ups["1", "serve#2"] == 1
    assert max(len(store) for _, store in ups) == 64


def test_every_measure_is_exposed_and_said_what_it_is() -> None:
    assert set(MEASURES) == metrics.HISTOGRAMS.keys()


def test_no_metric_is_there_twice_and_reasons_are_the_vocabulary_of_the_label() -> None:
    assert len({one.name for one in metrics.METRICS}) == len(metrics.METRICS)
    assert {reasons.ABSENT, reasons.CORRUPT, reasons.NO_ROOM} <= metrics.REASONS
    assert all(re.fullmatch(r"[a-z_]+", word) for word in metrics.REASONS)


def test_a_resting_store_is_one_state_and_its_text_is_no_label() -> None:
    resting = remote_usage(state="resting: remote_timeout: 10.0.0.7 said nothing")
    shown = statistics(remote=resting)
    text = exposition([process(stats=shown), process(2, role="service", stats=shown)]).body.decode()
    assert 'omlx_cache_remote_written_pages_total{pid="2",store="serve"} 77.0' in text
    assert 'omlx_cache_hit_tokens_total{pid="2"' not in text
    assert 'omlx_cache_remote_state{pid="1",state="resting",store="serve"} 1.0' in text
    assert 'omlx_cache_remote_state{pid="1",state="ok",store="serve"} 0.0' in text
    assert "10.0.0.7" not in text
    assert 'omlx_cache_remote_errors_total{pid="1",reason="remote_timeout",store="serve"} 3' in text


@pytest.mark.nightly
@needs_promtool
def test_promtool_takes_the_rules_and_their_scenarios() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=MONITORING, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
