"""The process of the service: signals, the manager's watchdog, and an end within a deadline."""

import contextlib
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

from omlx_cache.control.errors import ControlError
from omlx_cache.control.server import ApiServer, serve_port, serve_service_socket
from omlx_cache.package import set_level
from omlx_cache.settings import ConfigError
from omlx_cache.settings.machine import read_secret
from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.service.answers import Answers
from omlx_cache_daemon.service.configuration import Configuration
from omlx_cache_daemon.service.machine import MachineStatus
from omlx_cache_daemon.service.notify import Notifier
from omlx_cache_daemon.service.options import RELOADED
from omlx_cache_daemon.service.upkeep import Upkeep

_log = logging.getLogger(__name__)

OPENING_SECONDS = 20.0
"""After so long the service is ready whether or not its disk has answered: it shows that, too."""
HUNG_SECONDS = 900.0
"""A thread that was not seen for so long is stuck: nothing that it does takes as long."""


class Service:
    """One service from start to end; `run` belongs to the main thread.

    `_stopping` and `_reloading` are set by handlers of signals, which wake the loop by `_waker`.
    """

    def __init__(
        self,
        configuration: Configuration,
        reread: Callable[[], Configuration],
        notifier: Notifier | None = None,
    ) -> None:
        self._configuration = configuration
        self._reread = reread
        self._notifier = notifier or Notifier()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._upkeep = Upkeep(configuration, self._wake)
        self._answers = Answers(configuration, self._upkeep)
        self._control: ApiServer | None = None
        self._machine: MachineStatus | None = None
        self._status: ApiServer | None = None
        self._stopping = self._reloading = False
        self._is_ready = False

    def run(self) -> int:
        """Serve until a signal says otherwise; return 0, or raise AlreadyKept."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._reload)
        # Another thread may be the one that is interrupted.
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for note in self._configuration.settings.removals():
            _log.warning("%s", note)
        token = self._token()
        self._start_control()
        self._upkeep.start()
        started = time.monotonic()
        try:
            while not self._stopping:
                self._step(started, token)
        finally:
            self._end()
        return OK

    def _start_control(self) -> None:
        try:
            self._control = serve_service_socket(self._answers.operations())
        except (ControlError, ConfigError, OSError) as error:
            _log.warning("no control socket: %s", error)

    def _token(self) -> str | None:
        """Return what clients of the port must know; raises ConfigError."""
        options = self._configuration.options
        if options.status_port == "off" or options.status_token_file == "off":
            return None
        return read_secret(options.status_token_file, "status_token_file")

    def _start_status(self, token: str | None) -> None:
        """Open the port, if there is to be one; raises ConfigError, OSError."""
        options = self._configuration.options
        if options.status_port == "off":
            return
        self._machine = MachineStatus(self._answers.operations())
        self._status = serve_port(self._machine.operations(), options.status_port, token)
        self._answers.status_url = self._status.url

    def _step(self, started: float, token: str | None) -> None:
        if self._upkeep.ended is not None:
            raise self._upkeep.ended
        if self._reloading:
            self._read_anew()
        waited = time.monotonic() - started
        if not self._is_ready and (self._upkeep.opened.is_set() or waited > OPENING_SECONDS):
            self._is_ready = True
            # Not before: a second service of the directory finds its port taken, and must say why.
            self._start_status(token)
            _log.info("keeps %s: %s", self._upkeep.directory, self._summary())
            if self._status is not None:
                _log.info("the status of all processes is at %s", self._status.url)
            # Last: whoever is told finds in the log where the port is.
            self._notifier.ready(self._summary())
        elif self._is_ready:
            self._notifier.tell(STATUS=self._summary())
        if time.monotonic() - self._upkeep.beat < HUNG_SECONDS:
            self._notifier.alive()
        self._wait()

    def _wait(self) -> None:
        """Wait for a signal, for news of the upkeep, or for the next sign of life."""
        patience = self._notifier.watchdog_seconds
        timeout = None if patience is None else patience / 3
        if not self._is_ready:
            timeout = 1.0 if timeout is None else min(1.0, timeout)
        select.select([self._woken], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _summary(self) -> str:
        usage = self._upkeep.tier.usage()
        if not self._upkeep.opened.is_set():
            return f"opening {self._upkeep.directory}"
        used, limit = format_size(usage.nbytes), format_size(usage.limit_bytes)
        return f"{usage.pages:,} pages, {used} of {limit}, {usage.state}"

    def _read_anew(self) -> None:
        self._reloading = False
        self._notifier.reloading()
        try:
            new = self._reread()
        except ConfigError as error:
            _log.error("the configuration stays as it was: %s", error)
        else:
            old = self._configuration.sources()
            for name, source in new.sources().items():
                if name not in RELOADED and source["value"] != old[name]["value"]:
                    _log.warning("%s counts after a restart only", name)
            set_level(new.settings.log_level)
            self._configuration = self._answers.configuration_read = new
            self._upkeep.reload(new)
        self._notifier.ready(self._summary())

    def _end(self) -> None:
        """End what runs, within the time that there is; then the process, whatever still runs."""
        self._notifier.stopping()
        deadline = time.monotonic() + self._configuration.options.drain_seconds
        if self._control is not None:
            self._control.close(max(0.1, deadline - time.monotonic()))
        if self._status is not None and self._machine is not None:
            self._status.close(max(0.1, min(1.0, deadline - time.monotonic())))
            self._machine.close()
        if not self._upkeep.stop(max(0.0, deadline - time.monotonic())):
            _log.warning("ends in the middle of its work: the disk does not answer in time")
            logging.shutdown()
            # A thread that waits for a disk would hold up the interpreter's own end.
            os._exit(OK)
        if self._upkeep.ended is None:
            _log.info("ended")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        self._wake()

    def _reload(self, number: int, frame: FrameType | None) -> None:
        self._reloading = True
        self._wake()

    def _wake(self) -> None:
        # A full socket wakes the loop as well.
        with contextlib.suppress(OSError):
            self._waker.send(b"x")
