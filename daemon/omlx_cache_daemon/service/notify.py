"""Tells the service manager how the service is: the protocol of `sd_notify(3)`.

A datagram of `NAME=value` lines to the socket that `$NOTIFY_SOCKET` names; nothing without one.
"""

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends what the manager is to know; never waits and raises nothing. Any thread may call.

    `watchdog_seconds`: how often the manager wants to hear of this process, None for never.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of an abstract socket's name.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_seconds = _watchdog(environ) if name else None
        self._socket: socket.socket | None = None
        if name[:1] in ("@", "/"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    def tell(self, **values: object) -> None:
        """Send values, such as `READY=1`."""
        text = "\n".join(f"{name}={value}" for name, value in values.items())
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(text.encode(), self._address)

    def ready(self, status: str) -> None:
        self.tell(READY=1, STATUS=status)

    def reloading(self) -> None:
        self.tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)

    def stopping(self) -> None:
        self.tell(STOPPING=1, STATUS="stopping")

    def alive(self) -> None:
        if self.watchdog_seconds is not None:
            self.tell(WATCHDOG=1)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """Return the manager's patience in seconds, None where it does not watch this process."""
    asked, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not asked.isdigit() or int(asked) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(asked) / 1e6
