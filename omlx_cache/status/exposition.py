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
    # A client that names it can read it; Prometheus prefers it.
    if "application/openmetrics-text" in accept.lower():
        return Exposition(OPENMETRICS, openmetrics.generate_latest(registry))  # type: ignore[no-untyped-call]
    return Exposition(TEXT, generate_latest(registry))
