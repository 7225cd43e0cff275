"""The process of the service: its log, signals, its manager (`sd_notify(3)`), and an end within a
deadline."""

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType

from omlx_cache.control.errors import ControlError
from omlx_cache.control.server import ApiServer, serve_port, serve_socket
from omlx_cache.package import set_level
from omlx_cache.settings import ConfigError
from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.service.answers import Answers
from omlx_cache_daemon.service.configuration import RELOADED, ServiceConfiguration
from omlx_cache_daemon.service.machine import MachineStatus
from omlx_cache_daemon.service.upkeep import Upkeep

_log = logging.getLogger(__name__)

OPENING_SECONDS = 20.0
"""After so long the service is ready whether or not its disk has answered: it shows that, too."""
HUNG_SECONDS = 900.0
"""A thread that was not seen for so long is stuck: nothing that it does takes as long."""
_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


class Service:
    """One service from start to end; `run` belongs to the main thread.

    `_stopping` and `_reloading` are set by handlers of signals, which wake the loop by `_waker`.
    """

    def __init__(
        self, configuration: ServiceConfiguration, reread: Callable[[], ServiceConfiguration]
    ) -> None:
        self._reread = reread
        self._manager = Manager(os.environ)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._upkeep = Upkeep(configuration, self._wake)
        self._answers = Answers(self._upkeep)
        self._machine = MachineStatus(self._answers.operations())
        self._servers: list[ApiServer] = []
        self._stopping = self._reloading = self._is_ready = False

    def run(self) -> int:
        """Serve until a signal says otherwise; return 0, or raise AlreadyKept."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._heed)
        # Another thread may be the one that is interrupted.
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for note in self._upkeep.wanted.settings.removals():
            _log.warning("%s", note)
        token = self._upkeep.wanted.token()
        try:
            own = serve_socket("auto", self._answers.operations(), is_service=True)
            self._servers += [own] if own else []
        except (ControlError, ConfigError, OSError) as error:
            _log.warning("no control socket: %s", error)
        started = time.monotonic()
        self._upkeep.start()
        try:
            while not self._stopping:
                self._step(started, token)
        finally:
            self._end()
        return OK

    def _step(self, started: float, token: str | None) -> None:
        if self._upkeep.ended is not None:
            raise self._upkeep.ended
        if self._reloading:
            self._read_anew()
        waited = time.monotonic() - started
        if not self._is_ready and (self._upkeep.opened.is_set() or waited > OPENING_SECONDS):
            self._is_ready = True
            # Not before: a second service of the directory finds its port taken, and must say why.
            port = self._upkeep.wanted.options.status_port
            if port != "off":
                status = serve_port(self._machine.operations(), port, token)
                self._servers.append(status)
                self._answers.status_url = status.url
            _log.info("keeps %s: %s", self._upkeep.directory, self._summary())
            if port != "off":
                _log.info("the status of all processes is at %s", self._answers.status_url)
            # Last: the log has the port by the time that the manager knows.
            self._manager.tell(READY=1, STATUS=self._summary())
        elif self._is_ready:
            self._manager.tell(STATUS=self._summary())
        if time.monotonic() - self._upkeep.beat < HUNG_SECONDS:
            self._manager.tell(WATCHDOG=1)
        self._wait()

    def _wait(self) -> None:
        patience = self._manager.watchdog_seconds / 3
        select.select([self._woken], [], [], patience if self._is_ready else min(1.0, patience))
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
        self._manager.tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        try:
            new = self._reread()
        except ConfigError as error:
            _log.error("the configuration stays as it was: %s", error)
        else:
            old = self._upkeep.wanted.sources()
            for name, source in new.sources().items():
                if name not in RELOADED and source["value"] != old[name]["value"]:
                    _log.warning("%s counts after a restart only", name)
            set_level(new.settings.log_level)
            self._upkeep.reload(new)
        self._manager.tell(READY=1, STATUS=self._summary())

    def _end(self) -> None:
        """End what runs, within the time that there is; then the process, whatever still runs."""
        self._manager.tell(STOPPING=1, STATUS="stopping")
        deadline = time.monotonic() + self._upkeep.wanted.options.drain_seconds
        for server in self._servers:
            server.close(max(0.1, min(1.0, deadline - time.monotonic())))
        if not self._upkeep.stop(max(0.0, deadline - time.monotonic())):
            _log.warning("ends in the middle of its work: the disk does not answer in time")
            logging.shutdown()
            # A thread that waits for a disk would hold up the interpreter's own end.
            os._exit(OK)
        if self._upkeep.ended is None:
            _log.info("ended")

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reloading = True
        else:
            self._stopping = True
        self._wake()

    def _wake(self) -> None:
        # A full socket wakes the loop as well.
        with contextlib.suppress(OSError):
            self._waker.send(b"x")


class Manager:
    """The service manager: it gets datagrams at the socket that `$NOTIFY_SOCKET` names, and none
    without one. Never waits and raises nothing. `watchdog_seconds`: how often it wants to hear of
    this process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of an abstract socket's name.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        wanted, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        is_watched = wanted.isdigit() and int(wanted) and pid in ("", str(os.getpid()))
        self.watchdog_seconds = int(wanted) / 1e6 if is_watched else 3600.0

    def tell(self, **values: object) -> None:
        text = "\n".join(f"{name}={value}" for name, value in values.items())
        if self._address:
            with contextlib.suppress(OSError):
                self._socket.sendto(text.encode(), self._address)


class JournalFormatter(logging.Formatter):
    """Begins each line with its priority, which the journal takes off again; it has the time."""

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{_PRIORITIES.get(record.levelname, 6)}>"
        return "\n".join(mark + line for line in super().format(record).splitlines())


def show_messages(level: str) -> None:
    """Show messages of this project from `level` on, of others from warnings on: on standard error,
    for a person or for the journal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))
    # So systemd says that standard error is the journal's.
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    with contextlib.suppress(OSError, ValueError):
        info = os.fstat(sys.stderr.fileno())
        if (device, inode) == (str(info.st_dev), str(info.st_ino)):
            handler.setFormatter(JournalFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    set_level(level)
