"""The text of a scrape: Prometheus' format, and OpenMetrics for those who accept it."""

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from omlx_cache.status.documents import Document
from omlx_cache.status.families import ProcessCollector

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Exposition(NamedTuple):
    """What a scrape gets."""

    content_type: str
    body: bytes


def exposition(processes: Sequence[Document], accept: str = "") -> Exposition:
    """Return the metrics of processes, as the operation `processes` gives them; touches no state of
    `prometheus_client`'s own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ProcessCollector(processes))
    if _wants_openmetrics(accept):
        return Exposition(OPENMETRICS, openmetrics.generate_latest(registry))  # type: ignore[no-untyped-call]
    return Exposition(TEXT, generate_latest(registry))


def _wants_openmetrics(accept: str) -> bool:
    """Tell whether a client takes OpenMetrics, and prefers nothing that we could send to it."""
    wishes = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for wish in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in wish.split(";"))
        if kind in wishes:
            wishes[kind] = max(wishes[kind], _quality(parameters))
    wanted, plain = wishes.values()
    return wanted > 0 and wanted >= plain


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
