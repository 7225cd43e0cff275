"""The text of a scrape, of several processes: Prometheus' format, or OpenMetrics.

The number of series is bounded: labels come from fixed vocabularies, but for a process's name and
its models, which are cut and limited. A value that should be a number and is none is left out.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics

from omlx_cache.status.answer import Answer
from omlx_cache.status.history import ProcessStatus
from omlx_cache.status.metrics import (
    HISTOGRAMS,
    INFO,
    INFO_HELP,
    METRICS,
    PREFIX,
    UP,
    UP_HELP,
    Metric,
)
from omlx_cache_storage.stats import Stats

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LABELS = ("pid", "store")
MOST_MODELS = 32
NAME_CHARACTERS = 64
TEXT_CHARACTERS = 256
SERVICE_PARTS = ("uptime_seconds", "cold", "remote", "events", "service")
OTHER = "other"


def exposition(processes: Sequence[ProcessStatus], accept: str = "") -> Answer:
    """Touches no state of `prometheus_client`'s own."""
    # All that the client library asks of a registry.
    families: Any = SimpleNamespace(collect=partial(_families, processes))
    # A client that names it can read it; Prometheus prefers it.
    if "application/openmetrics-text" in accept.lower():
        body = openmetrics.generate_latest(families)  # type: ignore[no-untyped-call]
        return Answer(200, OPENMETRICS, body, {"Vary": "Accept"})
    return Answer(200, TEXT, generate_latest(families), {"Vary": "Accept"})


def _families(processes: Sequence[ProcessStatus]) -> Iterator[Family]:
    labelled = list(zip(_labels(processes), processes, strict=True))
    up = GaugeMetricFamily(UP, UP_HELP, labels=LABELS)
    info = InfoMetricFamily(INFO, INFO_HELP, labels=LABELS)
    for labels, process in labelled:
        up.add_metric(labels, int(process.stats is not None))
        said = {"version": process.version, "role": process.role, "cold_dir": process.cold_dir}
        bounds = {name: bounded(text or "", TEXT_CHARACTERS) for name, text in said.items()}
        info.add_metric(labels, bounds)
    known = [(labels, _shown(one.role, one.stats)) for labels, one in labelled if one.stats]
    numbers = (_numbers(metric, known) for metric in METRICS)
    every = chain((up, info), numbers, _histograms(labelled))
    return (family for family in every if family.samples)


def _labels(processes: Sequence[ProcessStatus]) -> list[tuple[str, str]]:
    """No two labels are alike: one process may have two stores of the same name, and a scrape with
    two equal series is refused as a whole."""
    seen: dict[tuple[str, str], None] = {}
    for process in processes:
        pid, name = str(process.pid), bounded(process.name or process.role, NAME_CHARACTERS)
        numbered = (f"{name}#{n}" for n in count(2))
        seen[next((pid, one) for one in chain([name], numbered) if (pid, one) not in seen)] = None
    return list(seen)


def bounded(value: object, characters: int) -> str:
    """Return a label's value: printable, and no longer than that. Two that are cut differ where the
    whole texts do."""
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    if len(text) <= characters:
        return text
    digest = sha256(str(value).encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{text[: characters - 9]}~{digest}"


def _shown(role: str, stats: Stats) -> Mapping[str, Any]:
    """A service's other parts could only be 0, and would count as a store's."""
    parts = asdict(stats)
    return {name: parts[name] for name in (SERVICE_PARTS if role == "service" else parts)}


def _numbers(
    metric: Metric, processes: Sequence[tuple[tuple[str, str], Mapping[str, Any]]]
) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    extra = [metric.label] if metric.label else []
    family = kind(metric.name.removesuffix("_total"), metric.help, labels=[*LABELS, *extra])
    for labels, parts in processes:
        for word, path in metric.paths.items():
            value: Any = parts
            for key in path.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            for own, number in _by_word(metric, word, value):
                if math.isfinite(number):
                    family.add_metric([*labels, *([own] if extra else [])], number)
    return family


def _by_word(metric: Metric, word: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers of what lies at a path, each with its label's value."""
    if isinstance(value, str):
        # The text behind a colon is for people.
        said = _known(metric, value.partition(":")[0])
        for one in (*(metric.words or ()), OTHER):
            yield one, int(one == said)
    elif isinstance(value, Mapping) and metric.words is None:
        for name, number in sorted(value.items())[:MOST_MODELS]:
            yield bounded(name, TEXT_CHARACTERS), number
    elif isinstance(value, Mapping):
        sums: Counter[str] = Counter()
        for name, number in value.items():
            sums[_known(metric, name)] += number
        yield from sorted(sums.items())
    elif value is not None:
        yield word, float(value)


def _known(metric: Metric, word: str) -> str:
    return word if word in (metric.words or ()) else OTHER


def _histograms(
    processes: Sequence[tuple[tuple[str, str], ProcessStatus]],
) -> Iterator[Family]:
    for name, text in HISTOGRAMS.items():
        family = HistogramMetricFamily(f"{PREFIX}{name}", text, labels=LABELS)
        for labels, process in processes:
            one = process.stats.histograms.get(name) if process.stats else None
            if one is not None:
                buckets = [(str(float(edge)), below) for edge, below in one.buckets]
                family.add_metric(labels, [*buckets, ("+Inf", one.count)], one.sum)
        yield family
