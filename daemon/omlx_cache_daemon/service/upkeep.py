"""The service's work on a directory: one thread that looks after it, now and again."""

import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from omlx_cache.control.cold_files import open_tier
from omlx_cache.control.listener import remove_stale
from omlx_cache.control.socket_paths import search_places
from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.service.configuration import ServiceConfiguration
from omlx_cache_daemon.service.feeding import Feeding
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_daemon.service.scrub import AlreadyKept, Scrubber, StateFile
from omlx_cache_storage.breaker import UNAVAILABLE
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.events import EventLog
from omlx_cache_storage.private import claim

_log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""How often the ledger is asked while nothing happens: so late a lowered quota counts."""
LOOK_SECONDS = 30.0
"""How often the disk is looked at all the same: so late others' use of it counts."""
BUSY_SECONDS = 0.5
"""The same while others write: who follows later than their ledger is long reads it all again."""
LONGEST_SECONDS = 300.0
SWEEP_SECONDS = 6 * 3600.0
FEEDING_SECONDS = 1.0
"""How long pages that are being sent are waited for at the end: all are found there again."""
REMEMBERED = 4096
"""Events; some 2 MB."""
FIGURES: Final = (
    "scrubbed_pages", "scrubbed_bytes", "damaged_pages", "unread_pages", "passes", "sweeps",
    "swept_files", "swept_sockets", "freed_pages", "reloads", "failures",
)  # fmt: skip


class Upkeep:
    """Keeps a directory within its budget and its disk's free space, checks it and sweeps it.

    Its thread runs from `start` to `stop`. `tier`, `state`, `feeding` and `scrubber` are its own.
    `reload` hands over `wanted`, and `_applied` is the configuration in use. `beat` is when it was
    last seen alive, `ended` why it stopped. It calls `tell` when there is news of these.
    """

    def __init__(
        self,
        configuration: ServiceConfiguration,
        tell: Callable[[], None],
        fs: FileSystem | None = None,
    ) -> None:
        settings = configuration.settings
        self._fs = fs or FileSystem()
        self._tell = tell
        self.wanted = self._applied = configuration
        self.directory = settings.cold_dir
        self.figures = dict.fromkeys(FIGURES, 0)
        self.events = EventLog(REMEMBERED)
        self.state = StateFile(self.directory, self._fs)
        self.tier = KeepingTier(
            self.directory,
            settings.cold_bytes,
            min_free_bytes=settings.min_free_bytes,
            derived=settings.is_derived("cold_bytes"),
            fs=self._fs,
            events=self.events,
            memory=settings.machine.state_dir,
            parents=settings.makes_parents,
        )
        self.scrubber = Scrubber(self.directory, self._fs, self.state, self.figures)
        self.feeding = Feeding(self.tier, self.events, settings)
        self.beat = time.monotonic()
        self.opened = threading.Event()
        self.ended: AlreadyKept | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._pause = BUSY_SECONDS
        self._sweep_at = time.monotonic() + SWEEP_SECONDS
        self._look_at = 0.0
        self._seen = -1
        self._known_trouble = ""
        self._thread = threading.Thread(target=self._run, name="omlx-cached-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def reload(self, configuration: ServiceConfiguration) -> None:
        self.wanted = configuration
        self._wake.set()

    def stop(self, timeout: float) -> bool:
        """End the thread, and leave the directory to others; False if `timeout` seconds were not
        enough for its present work."""
        deadline = time.monotonic() + timeout
        self._stopping = True
        self._wake.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            return False
        self.feeding.close(max(0.0, min(FEEDING_SECONDS, deadline - time.monotonic())))
        self.tier.close()
        self.state.close()
        return True

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    pause = self._step() if self.opened.is_set() else self._begin()
                except AlreadyKept:
                    raise
                except Exception:
                    # A fault of this program's own costs a turn, and not the service's answers.
                    _log.exception("the directory is not looked after")
                    self.figures["failures"] += 1
                    pause = LONGEST_SECONDS
                self.beat = time.monotonic()
                self._wake.wait(pause)
                self._wake.clear()
        except AlreadyKept as error:
            self.ended = error
            self._tell()

    def _begin(self) -> float:
        """Raises AlreadyKept."""
        with contextlib.suppress(OSError):
            if self.tier.is_there():
                claim(self.directory)
                self.tier.limits.set_before = self.state.take().budget_bytes or None
        open_tier(self.tier, self._applied.settings)
        if not self._trouble():
            self._take_state()
        give_back_memory()
        self._sweep_sockets()
        self.opened.set()
        self._tell()
        return 0.0

    def _step(self) -> float:
        """Do the due work; return for how long none is due."""
        self.tier.refresh()
        wanted, sharing = self.wanted, self.tier.sharing
        if wanted is not self._applied and self._apply(wanted):
            self._applied, self._look_at = wanted, 0.0
        # A client that asks for figures takes in the changes of peer processes, too.
        is_quiet = sharing.generation == self._seen and sharing.follows
        if time.monotonic() >= self._look_at or not is_quiet:
            self._look()
            if self._trouble():
                self._look_at = 0.0
                self._pause = min(2 * max(self._pause, IDLE_SECONDS / 2), LONGEST_SECONDS)
                return self._pause
            self._take_state()
        self.feeding.step()
        is_busy = not is_quiet or sharing.fell_behind
        self._pause = BUSY_SECONDS if is_busy else min(2 * self._pause, IDLE_SECONDS)
        return min(
            self._pause,
            self.scrubber.step(wanted.options.scrub_days, wanted.options.scrub_bytes_per_second),
        )

    def _look(self) -> None:
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._seen = self.tier.sharing.generation
        self.figures["freed_pages"] += self.tier.keep()
        # The directory may have been read anew, or somebody has looked at the tree of prefixes.
        give_back_memory()
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + SWEEP_SECONDS
            with contextlib.suppress(OSError):
                self.figures["swept_files"] += self.tier.sweep()
                self._sweep_sockets()
                self.figures["sweeps"] += 1

    def _sweep_sockets(self) -> None:
        for place in search_places():
            with contextlib.suppress(OSError):
                self.figures["swept_sockets"] += len(remove_stale(place))

    def _trouble(self) -> str:
        """Return why the directory cannot be had, "" when it can; says so once."""
        state = self.tier.usage().state
        trouble = state if state.startswith(UNAVAILABLE) else ""
        if trouble != self._known_trouble:
            self._known_trouble = trouble
            self._tell()
            if trouble:
                _log.warning("%s: %s; probed again later", self.directory, trouble)
            else:
                _log.info("%s is there again", self.directory)
        return trouble

    def _take_state(self) -> None:
        """Raises AlreadyKept. Without an available file, the state stays in memory."""
        with contextlib.suppress(OSError):
            if self._fs.exists(self.directory):
                self.state.take()
        budget = self.tier.limits.set_before or 0
        if budget != self.state.kept.budget_bytes:
            self.state.note(budget_bytes=budget)
            self.state.save()

    def _apply(self, configuration: ServiceConfiguration) -> bool:
        """Go by a configuration; False where the directory lock timed out."""
        settings = configuration.settings
        if not self.feeding.goes_by(settings):
            # All pages are looked at anew.
            self.feeding.close(FEEDING_SECONDS)
            self.feeding = Feeding(self.tier, self.events, settings)
        has_limits = self.tier.has_limits(
            settings.cold_bytes,
            settings.min_free_bytes,
            settings.cold_budget,
            derived=settings.is_derived("cold_bytes"),
        )
        if has_limits:
            self.figures["reloads"] += 1
            _log.info("read anew: the directory's budget is %s", format_size(self.tier.limit_bytes))
        return has_limits


def give_back_memory() -> None:
    """Have freed memory returned to the system, after work that took much of it. Raises nothing."""
    with contextlib.suppress(AttributeError, OSError):
        # glibc's own; elsewhere memory returns to the system as it is freed.
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
