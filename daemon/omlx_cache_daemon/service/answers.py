"""The service's answers on its control socket: a store's, for the directory that it keeps."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from omlx_cache.control import cold_files
from omlx_cache.control.answering import Answering
from omlx_cache.control.listing import ListedPage, list_pages
from omlx_cache.control.operations import operations
from omlx_cache.control.replies import Identity, RecordPage
from omlx_cache.package import VERSION
from omlx_cache.requests.log import Decoder
from omlx_cache.status.routes import Operations
from omlx_cache.upkeep.directory import Allowance, allowance, known_budget
from omlx_cache_daemon.service.upkeep import Upkeep
from omlx_cache_storage.cold.catalog import read_namespace
from omlx_cache_storage.events import EventLog
from omlx_cache_storage.eviction.order import Record
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.measures import Counters
from omlx_cache_storage.stats import HotUsage, MemoryUsage, Stats

ROLE = "service"
NAME = "omlx-cached"
ANSWERED = ("ping", "stats", "ps", "config", "ls", "inspect", "prefixes", "events")
"""Operations that are as in a store; the others are for stores only."""


class Answers:
    """Reads the service as the operations read a store. Any thread may call; nothing changes."""

    def __init__(self, upkeep: Upkeep) -> None:
        self.status_url: str | None = None
        self._upkeep = upkeep
        self._counters = Counters()
        self._started = time.monotonic()

    def operations(self) -> Operations:
        every = operations(cast(Answering, self))
        return {
            **{name: every[name] for name in ANSWERED},
            "stats": lambda args: replace(every["stats"](args), service=self.doings()),
            "requests": lambda args: RecordPage(0, ()),
            "recent": lambda args: [],
        }

    @property
    def cold_dir(self) -> str:
        return str(self._upkeep.directory)

    def identity(self) -> Identity:
        return Identity(
            pid=os.getpid(),
            name=NAME,
            role=ROLE,
            uptime_s=time.monotonic() - self._started,
            models=(),
            version=VERSION,
            service={} if self.status_url is None else {"status_url": self.status_url},
        )

    def configuration(self) -> Mapping[str, object]:
        known = self._upkeep.wanted
        allowed = self.allowance()
        return {
            "settings": known.sources(),
            "notes": [*known.notes(), *([] if allowed is None else allowed.notes())],
            "file": None if known.file is None else str(known.file),
        }

    def doings(self) -> dict[str, float | bool]:
        kept = self._upkeep.state.kept
        return {
            **self._upkeep.figures,
            "is_scrubbing": self._upkeep.scrubber.is_running,
            "pass_pages": kept.pages,
            "pass_bytes": kept.nbytes,
            "pass_began": kept.began,
            "last_pass_finished": kept.finished,
        }

    @property
    def events(self) -> EventLog:
        return self._upkeep.events

    def refresh(self) -> bool:
        return self._upkeep.tier.refresh()

    def stats(self) -> Stats:
        return Stats(
            uptime_seconds=time.monotonic() - self._started,
            hot=HotUsage(0, 0, 0, 0, 0, 0, 0),
            cold=self._upkeep.tier.usage(),
            writer=None,
            requests=self._counters.requests(),
            snapshots=self._counters.snapshots(0),
            memory=MemoryUsage("normal", None, 0, 0),
            events=self.events.counts(),
            remote=self._upkeep.feeding.usage(),
        )

    def allowance(self) -> Allowance | None:
        settings, usage = self._upkeep.wanted.settings, self._upkeep.tier.usage()
        return allowance(settings, usage.limit_bytes, known_budget(settings.cold_dir))

    def listing(self) -> list[ListedPage]:
        self.refresh()
        return list_pages((), self._upkeep.tier.listing())

    @property
    def decoder(self) -> Decoder | None:
        return None

    def records(self) -> Mapping[str, Sequence[Record]]:
        self.refresh()
        return {"cold": self._upkeep.tier.records()}

    def readable_document(self, digest: BlockKey) -> dict[str, object]:
        return read_namespace(self._upkeep.directory, digest)

    def created_ns(self, digest: BlockKey) -> int | None:
        return cold_files.created_ns(self._upkeep.directory, digest)
