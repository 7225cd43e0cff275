"""Metric families of processes: from what `Stats.to_dict()` gives, and from nothing else, so that
one process can render another's.

The number of series is bounded: labels come from fixed vocabularies, but for a process's name and
its models, which are cut and limited. What is no number where one should be is left out.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain, count
from typing import Any, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from omlx_cache.status.documents import Document
from omlx_cache.status.metrics import (
    CHOICES,
    HISTOGRAMS,
    INFO,
    INFO_HELP,
    METRICS,
    RATE,
    RATE_HELP,
    SPLITS,
    UP,
    UP_HELP,
)
from omlx_cache.status.shapes import PREFIX, Choice, Kind, Metric, Split

LABELS = ("pid", "store")
MOST_MODELS = 32
"""Models of one process that are shown by name."""
MOST_HISTOGRAMS = 16
NAME_CHARACTERS = 64
TEXT_CHARACTERS = 256
SERVICE_PARTS = ("uptime_seconds", "cold", "remote", "events", "service")
"""What there is of a service: no memory tier, no writer and no requests."""
OTHER = "other"
_HISTOGRAM = re.compile(r"[a-z][a-z_]{0,39}_(seconds|tokens|bytes)")


class Labelled(NamedTuple):
    """A process as the families need it: its labels, and its numbers (None: it does not answer)."""

    labels: tuple[str, str]
    document: Document
    stats: Mapping[str, Any] | None


class ProcessCollector(Collector):
    """Gives the families of some processes, as they are; reads nothing more of them."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._processes = _processes(documents)

    def collect(self) -> Iterator[Family]:
        """Yield every family that has a value."""
        for family in self._all():
            if family.samples:
                yield family

    def _all(self) -> Iterator[Family]:
        processes = self._processes
        yield _up(processes)
        yield _info(processes)
        for metric in METRICS:
            yield _numbers(metric, processes)
        for choice in CHOICES:
            yield _choice(choice, processes)
        for split in SPLITS:
            yield _split(split, processes)
        yield _rates(processes)
        yield from _histograms(processes)


def _processes(documents: Sequence[Document]) -> list[Labelled]:
    """Return processes with labels of which no two are alike: one process may have two stores of
    the same name, and a scrape with two equal series is refused as a whole."""
    seen: set[tuple[str, str]] = set()
    found = []
    for document in documents:
        pid = bounded(document.get("pid", ""), 20)
        name = bounded(document.get("name") or document.get("role") or "store", NAME_CHARACTERS)
        numbered = (f"{name}#{n}" for n in count(2))
        labels = next((pid, one) for one in chain([name], numbered) if (pid, one) not in seen)
        seen.add(labels)
        stats = document.get("stats")
        if document.get("error") is not None or not isinstance(stats, Mapping):
            stats = None
        elif document.get("role") == "service":
            # The rest could only be 0, and would count as a store's.
            stats = {part: stats[part] for part in SERVICE_PARTS if part in stats}
        found.append(Labelled(labels, document, stats))
    return found


def bounded(value: object, characters: int) -> str:
    """Return a label's value: printable, and no longer than that. Two that are cut differ where
    the whole texts do."""
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    if len(text) <= characters:
        return text
    digest = sha256(str(value).encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{text[: characters - 9]}~{digest}"


def number(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _at(stats: Mapping[str, object], path: Sequence[str]) -> object:
    value: object = stats
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _family(
    kind: Kind, name: str, text: str, labels: Sequence[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    if kind == "counter":
        return CounterMetricFamily(name.removesuffix("_total"), text, labels=labels)
    return GaugeMetricFamily(name, text, labels=labels)


def _up(processes: Sequence[Labelled]) -> Family:
    family = GaugeMetricFamily(UP, UP_HELP, labels=LABELS)
    for process in processes:
        family.add_metric(process.labels, 0 if process.stats is None else 1)
    return family


def _info(processes: Sequence[Labelled]) -> Family:
    family = InfoMetricFamily(INFO, INFO_HELP, labels=LABELS)
    for process in processes:
        said = {
            name: bounded(process.document.get(name) or "", TEXT_CHARACTERS)
            for name in ("version", "role", "cold_dir")
        }
        family.add_metric(process.labels, said)
    return family


def _numbers(metric: Metric, processes: Sequence[Labelled]) -> Family:
    extra = [place.label[0] for place in metric.places[:1] if place.label is not None]
    family = _family(metric.kind, metric.name, metric.help, [*LABELS, *extra])
    for process in processes:
        for place in metric.places if process.stats is not None else ():
            value = number(_at(process.stats or {}, place.path))
            if value is not None:
                own = () if place.label is None else (place.label[1],)
                family.add_metric([*process.labels, *own], value)
    return family


def _choice(choice: Choice, processes: Sequence[Labelled]) -> Family:
    family = GaugeMetricFamily(choice.name, choice.help, labels=[*LABELS, choice.label])
    for process in processes:
        said = _at(process.stats or {}, choice.path)
        if not isinstance(said, str):
            continue
        # What stands behind a colon is for people.
        word = said.split(":", 1)[0]
        word = word if word in choice.words else OTHER
        for known in (*choice.words, OTHER):
            family.add_metric([*process.labels, known], int(known == word))
    return family


def _split(split: Split, processes: Sequence[Labelled]) -> Family:
    family = _family("counter", split.name, split.help, [*LABELS, split.label])
    for process in processes:
        sums: dict[str, float] = {}
        for word, value in _items(_at(process.stats or {}, split.path)):
            word = word if word in split.words else OTHER
            sums[word] = sums.get(word, 0.0) + value
        for word, total in sorted(sums.items()):
            family.add_metric([*process.labels, word], total)
    return family


def _rates(processes: Sequence[Labelled]) -> Family:
    family = GaugeMetricFamily(RATE, RATE_HELP, labels=[*LABELS, "model"])
    for process in processes:
        rates = _at(process.stats or {}, ("requests", "prefill_tokens_per_second"))
        for model, rate in sorted(_items(rates))[:MOST_MODELS]:
            family.add_metric([*process.labels, bounded(model, TEXT_CHARACTERS)], rate)
    return family


def _items(value: object) -> list[tuple[str, float]]:
    """Return the numbers of a map by their names."""
    pairs = value.items() if isinstance(value, Mapping) else ()
    return [(str(key), n) for key, one in pairs if (n := number(one)) is not None]


def _histograms(processes: Sequence[Labelled]) -> Iterator[Family]:
    found = [(process.labels, (process.stats or {}).get("histograms", {})) for process in processes]
    names = {name for _, histograms in found for name in histograms if _HISTOGRAM.fullmatch(name)}
    for name in sorted(names)[:MOST_HISTOGRAMS]:
        text = HISTOGRAMS.get(name, f"Distribution of {name.replace('_', ' ')}.")
        family = HistogramMetricFamily(f"{PREFIX}{name}", text, labels=LABELS)
        for labels, histograms in found:
            one = histograms.get(name)
            if one is not None:
                buckets = [(str(float(edge)), below) for edge, below in one["buckets"]]
                family.add_metric(labels, [*buckets, ("+Inf", one["count"])], one["sum"])
        yield family
