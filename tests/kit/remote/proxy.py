"""A TCP proxy on loopback that is as slow, as small or as broken as a test says, each way."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

LOCAL = "127.0.0.1"
_CHUNK = 64 << 10
_TICK = 0.005
Link = tuple[socket.socket, socket.socket]
"""A connection: from the client, and to the server."""


@dataclass(frozen=True, slots=True)
class Way:
    """What happens to the bytes that go one way.

    `delay`: what came arrives so many seconds later. `rate`: bytes a second of all connections
    together. `trickle`: seconds for each byte. `stalls`: nothing passes. `cut_after`: a connection
    ends behind so many bytes (with 0 before the first), with a reset if `resets`. `corrupt_every`:
    one of so many bytes is changed. Bytes are counted for each connection from when the rule was
    set.
    """

    delay: float = 0.0
    rate: float | None = None
    trickle: float | None = None
    stalls: bool = False
    cut_after: int | None = None
    resets: bool = False
    corrupt_every: int | None = None

    def most(self, passed: int) -> int:
        """Return how many bytes may go at once when `passed` went before."""
        most = _CHUNK if self.rate is None else max(1, int(self.rate * _TICK))
        most = most if self.trickle is None else 1
        return most if self.cut_after is None else min(most, self.cut_after - passed)

    def damaged(self, data: bytes, passed: int) -> bytes:
        """Return bytes as they arrive when `passed` went before."""
        changed = bytearray(data)
        if self.corrupt_every is not None:
            first = -(passed + 1) % self.corrupt_every
            for at in range(first, len(data), self.corrupt_every):
                changed[at] ^= 0x55
        return bytes(changed)


FREE = Way()


class Proxy:
    """Stands before a server; the rules hold at once, for connections that there are too.

    A connection has a thread for each way. `_news` guards the rules and `_links`. `up_bytes` is
    what passed to the server.
    """

    def __init__(self, port: int) -> None:
        self.up_bytes = 0
        self._to = (LOCAL, port)
        self._ways = {True: FREE, False: FREE}
        self._free_at = {True: 0.0, False: 0.0}
        self._news = threading.Condition()
        self._links: list[Link] = []
        self._deaf = False
        self._listening = socket.create_server((LOCAL, 0), backlog=256)
        self._listening.settimeout(0.05)
        self.port = int(self._listening.getsockname()[1])
        self._threads: list[threading.Thread] = []
        self._start(self._listen)

    @property
    def place(self) -> str:
        return f"{LOCAL}:{self.port}"

    def rules(self, *, up: Way | None = None, down: Way | None = None) -> None:
        """Set the rules of a way, to the server or from it; the other keeps its own."""
        with self._news:
            self._ways = {True: up or self._ways[True], False: down or self._ways[False]}
            self._news.notify_all()

    def delay(self, seconds: float) -> None:
        """Hold bytes for half of a round trip's `seconds` each way."""
        self.rules(up=Way(delay=seconds / 2), down=Way(delay=seconds / 2))

    def free(self) -> None:
        """Let everything pass again."""
        self.rules(up=FREE, down=FREE)

    def refuse(self) -> None:
        """Take no new connections; those that there are stay."""
        self._deaf = True
        self._threads[0].join()
        self._listening.close()

    def reset(self) -> None:
        """End all connections as a power cut would: with a reset."""
        for link in list(self._links):
            self._end(link, resets=True)

    def close(self) -> None:
        """End all connections, and the threads. Any number of times."""
        self.refuse()
        self.reset()
        for thread in self._threads:
            thread.join(30)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        while not self._deaf:
            with contextlib.suppress(TimeoutError):
                self._take(self._listening.accept()[0])

    def _take(self, client: socket.socket) -> None:
        server = socket.socket()
        self._links.append(link := (client, server))
        try:
            server.connect(self._to)
            for one in link:
                one.setblocking(True)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            self._end(link, resets=True)
            return
        self._start(self._carry, link, True, client, server)
        self._start(self._carry, link, False, server, client)

    def _end(self, link: Link, *, resets: bool = False) -> None:
        with self._news:
            if link not in self._links:
                return
            self._links.remove(link)
            self._news.notify_all()
        for one in link:
            with contextlib.suppress(OSError):
                if resets:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Wakes who reads; one for both ways would say more than the reset does.
                one.shutdown(socket.SHUT_RD if resets else socket.SHUT_RDWR)
            one.close()

    def _carry(self, link: Link, up: bool, source: socket.socket, target: socket.socket) -> None:
        """Carry bytes one way, as the rule says that holds when each of them goes, until their
        sender has no more."""
        rule, passed = FREE, 0
        try:
            while data := source.recv(_CHUNK):
                time.sleep(self._ways[up].delay)
                while True:
                    before, rule = rule, self._rule(link, up)
                    passed = passed if rule is before else 0
                    if rule.cut_after is not None and passed >= rule.cut_after:
                        self._end(link, resets=rule.resets)
                    if not data:
                        break
                    some, data = data[: rule.most(passed)], data[rule.most(passed) :]
                    target.sendall(rule.damaged(some, passed))
                    passed += len(some)
                    self.up_bytes += up * len(some)
                    self._pause(up, rule, len(some))
            if link in self._links:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(link)

    def _rule(self, link: Link, up: bool) -> Way:
        with self._news:
            self._news.wait_for(lambda: not self._ways[up].stalls or link not in self._links)
            return self._ways[up]

    def _pause(self, up: bool, rule: Way, nbytes: int) -> None:
        """Wait until the next byte may go, or there is another rule."""
        with self._news:
            now = time.monotonic()
            until = now + (rule.trickle or 0.0)
            if rule.rate is not None:
                # What a timer was late is made up for.
                until = max(now - _TICK, self._free_at[up]) + nbytes / rule.rate
                self._free_at[up] = until
            self._news.wait_for(lambda: self._ways[up] is not rule, max(0.0, until - now))


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """Stand a proxy before a port on loopback."""
    with contextlib.closing(Proxy(port)) as proxy:
        yield proxy
