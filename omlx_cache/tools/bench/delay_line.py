"""A network that is far away: passes TCP on to a port of this machine, each byte so much later."""

import contextlib
import queue
import socket
import threading
import time
from typing import Self

_PIECE = 1 << 16
_UnderWay = queue.SimpleQueue[tuple[float, bytes]]


class DelayLine:
    """Listens at `port` of 127.0.0.1 and passes everything on, `seconds` later in each direction;
    as many bytes as come are under way at once. Ends with the `with` block, and cuts what is open.

    `_open` is guarded by `_lock`.
    """

    def __init__(self, to: tuple[str, int], seconds: float) -> None:
        self._to, self._seconds = to, seconds
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)

    def _run(self, work: object, *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                far = socket.create_connection(self._to)
                with self._lock:
                    self._open |= {near, far}
                for source, target in ((near, far), (far, near)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    under_way: _UnderWay = queue.SimpleQueue()
                    self._run(self._take, source, under_way)
                    self._run(self._give, target, under_way)

    def _take(self, source: socket.socket, under_way: "_UnderWay") -> None:
        data = b"x"
        while data:
            try:
                data = source.recv(_PIECE)
            except OSError:
                data = b""
            under_way.put((time.monotonic() + self._seconds, data))

    def _give(self, target: socket.socket, under_way: "_UnderWay") -> None:
        with target, contextlib.suppress(OSError):
            while True:
                due, data = under_way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    target.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(data)
