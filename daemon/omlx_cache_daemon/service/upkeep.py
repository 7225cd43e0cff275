"""The service's work on a directory: one thread that looks after it, now and again."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.service.configuration import Configuration
from omlx_cache_daemon.service.errors import AlreadyKept
from omlx_cache_daemon.service.feeding import Feeding
from omlx_cache_daemon.service.figures import Figures
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_daemon.service.memory import give_back_memory
from omlx_cache_daemon.service.scrub import Scrubber
from omlx_cache_daemon.service.state import StateFile
from omlx_cache_daemon.service.sweep import empty_shards, leftovers, sweep_sockets
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.health import UNAVAILABLE
from omlx_cache_storage.events import EventLog

_log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""How often the ledger is asked while nothing happens: so late a lowered quota counts."""
LOOK_SECONDS = 30.0
"""How often the disk is looked at all the same: so late others' use of it counts."""
BUSY_SECONDS = 0.5
"""The same while others write: who follows later than their ledger is long reads it all again."""
LONGEST_SECONDS = 300.0
"""The same for a disk that cannot be had."""
SWEEP_SECONDS = 6 * 3600.0
FEEDING_SECONDS = 1.0
"""How long pages that are being sent are waited for at the end: all are found there again."""
REMEMBERED = 4096
"""Events; some 2 MB."""


class Upkeep:
    """Keeps a directory within its budget and its disk's free space, checks it and sweeps it.

    Its thread runs from `start` to `stop`. `tier`, `state` and `scrubber` are its; `_reloaded` is
    handed over by assignment; `beat` is when it was last seen alive, `ended` why it gave up.
    `tell` is called by it when there is news of these.
    """

    def __init__(
        self,
        configuration: Configuration,
        tell: Callable[[], None],
        fs: FileSystem | None = None,
    ) -> None:
        self._fs = fs or FileSystem()
        self._tell = tell
        self._configuration = configuration
        self._reloaded: Configuration | None = None
        settings = configuration.settings
        self.directory = settings.cold_dir
        self.figures = Figures()
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
        self.scrubber = Scrubber(
            self.directory, self._fs, self.state, self.figures, self.tier.drop_damaged
        )
        self.scrubber.has_rate(configuration.options.scrub_bytes_per_second)
        self.feeding = Feeding(self.tier, self.events, settings)
        self.beat = time.monotonic()
        self.opened = threading.Event()
        self.ended: AlreadyKept | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._pause = BUSY_SECONDS
        self._sweep_at = time.monotonic() + SWEEP_SECONDS
        self._known_trouble = ""
        self._has_limits = True
        self._seen = -1
        self._look_at = 0.0
        self._thread = threading.Thread(target=self._run, name="omlx-cached-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def reload(self, configuration: Configuration) -> None:
        """Go by other limits soon."""
        self._reloaded = configuration
        self._wake.set()

    def stop(self, timeout: float) -> bool:
        """End the thread, and leave the directory to others; False if `timeout` seconds were not
        enough for what it is doing."""
        deadline = time.monotonic() + timeout
        self._stopping = True
        self._wake.set()
        self.scrubber.stop(max(0.0, deadline - time.monotonic()))
        self.feeding.close(max(0.0, min(FEEDING_SECONDS, deadline - time.monotonic())))
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() or self.scrubber.is_running:
            return False
        self.tier.close()
        self.state.close()
        return True

    def _run(self) -> None:
        try:
            while not self._stopping:
                pause = self._guarded(self._step if self.opened.is_set() else self._begin)
                self.beat = time.monotonic()
                self._wake.wait(pause)
                self._wake.clear()
        except AlreadyKept as error:
            self.ended = error
            self._tell()

    def _begin(self) -> float:
        """Open the directory, and return 0 seconds; raises AlreadyKept."""
        with contextlib.suppress(OSError):
            if self.tier.is_there():
                self._fs.claim(self.directory)
                self.tier.set_before = self.state.take().budget_bytes or None
        self.tier.open(self._configuration.settings.cold_budget)
        if not self._trouble():
            self._take_state()
        give_back_memory()
        self.figures.add("swept_sockets", sweep_sockets())
        self.opened.set()
        self._tell()
        return 0.0

    def _guarded(self, work: Callable[[], float]) -> float:
        try:
            return work()
        except AlreadyKept:
            raise
        except Exception:
            # A fault of this program's own costs a turn, and not what the service shows.
            _log.exception("the directory is not looked after")
            self.figures.add("failures")
            return LONGEST_SECONDS

    def _step(self) -> float:
        """Do what is due; return for how long nothing is."""
        self.tier.refresh()
        if self._reloaded is not None:
            self._configuration, self._reloaded, self._has_limits = self._reloaded, None, False
        if not self._has_limits:
            self._apply(self._configuration)
            self._look_at = 0.0
        # Whoever asks for figures takes in what others did, too.
        is_quiet = self.tier.sharing.generation == self._seen and not self.tier.sharing.fell_behind
        if is_quiet and time.monotonic() < self._look_at:
            self._pause = min(2 * self._pause, IDLE_SECONDS)
            self.feeding.step()
            return min(self._pause, self.scrubber.step(self._configuration.options.scrub_days))
        self._look()
        trouble = self._trouble()
        if trouble:
            self._look_at = 0.0
            self._pause = min(2 * max(self._pause, IDLE_SECONDS / 2), LONGEST_SECONDS)
            return self._pause
        self._take_state()
        self.feeding.step()
        if time.monotonic() >= self._sweep_at:
            self._sweep()
        self._look_at = time.monotonic() + LOOK_SECONDS
        is_busy = not is_quiet or self.tier.sharing.fell_behind
        self._pause = BUSY_SECONDS if is_busy else min(2 * self._pause, IDLE_SECONDS)
        days = self._configuration.options.scrub_days
        return min(self._pause, self.scrubber.step(days))

    def _look(self) -> None:
        """Bring the directory within its limits."""
        readings = self.tier.readings
        self._seen = self.tier.sharing.generation
        freed = self.tier.keep()
        if self.tier.readings != readings:
            give_back_memory()
        self.figures.add("freed_pages", freed)

    def _trouble(self) -> str:
        """Return why the directory cannot be had, "" when it can; says so once."""
        state = self.tier.usage().state
        trouble = state if state.startswith(UNAVAILABLE) else ""
        if trouble != self._known_trouble:
            self._known_trouble = trouble
            self._tell()
            if trouble:
                _log.warning("%s: %s; asked again now and then", self.directory, trouble)
            else:
                _log.info("%s is there again", self.directory)
        return trouble

    def _take_state(self) -> None:
        """Have the directory's file for services; raises AlreadyKept. Without one that can be had,
        what is known is kept in memory."""
        with contextlib.suppress(OSError):
            if not self.state.is_held and self._fs.exists(self.directory):
                self.state.take()
        budget = self.tier.set_before or 0
        if budget != self.state.kept.budget_bytes:
            self.state.note(budget_bytes=budget)

    def _sweep(self) -> None:
        with contextlib.suppress(OSError):
            temporaries = list(leftovers(self.directory, self._fs))
            shards = list(empty_shards(self.directory, self._fs))
            self.figures.add("swept_files", self.tier.sweep(temporaries, shards))
            self.figures.add("swept_sockets", sweep_sockets())
            self.figures.add("sweeps")
        self._sweep_at = time.monotonic() + SWEEP_SECONDS

    def _apply(self, configuration: Configuration) -> None:
        """Go by a configuration; a directory that is not to be had now is asked again later."""
        settings = configuration.settings
        self.scrubber.has_rate(configuration.options.scrub_bytes_per_second)
        self.feeding.use(settings)
        self._has_limits = self.tier.has_limits(
            settings.cold_bytes,
            settings.min_free_bytes,
            settings.cold_budget,
            derived=settings.is_derived("cold_bytes"),
        )
        if self._has_limits:
            self.figures.add("reloads")
            limit = format_size(self.tier.limit_bytes)
            _log.info("read anew: the directory's budget is %s", limit)
