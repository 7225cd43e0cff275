"""A TCP proxy on loopback that is as slow, as small or as broken as a test says, each way."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

LOCAL = "127.0.0.1"
_CHUNK = 64 << 10
_CHUNKS_HELD = 512
_TICK = 0.005
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Way:
    """What happens to the bytes that go one way.

    `delay`: each byte arrives so many seconds later, as many as come. `rate`: bytes a second of all
    connections together. `trickle`: seconds for each byte. `stalls`: nothing passes. `cut_after`: a
    connection ends behind so many bytes (with 0 before the first), with a reset if `resets`.
    `corrupt_every`: one of so many bytes is changed. Bytes are counted for each connection from
    when the rule was set.
    """

    delay: float = 0.0
    rate: float | None = None
    trickle: float | None = None
    stalls: bool = False
    cut_after: int | None = None
    resets: bool = False
    corrupt_every: int | None = None

    def damaged(self, data: bytes, passed: int) -> bytes:
        """Return bytes as they arrive when `passed` went before."""
        changed = bytearray(data)
        if self.corrupt_every is not None:
            first = -(passed + 1) % self.corrupt_every
            for at in range(first, len(data), self.corrupt_every):
                changed[at] ^= 0x55
        return bytes(changed)


FREE = Way()


@dataclass(slots=True, eq=False)
class _Link:
    """A connection: its two sockets."""

    client: socket.socket
    server: socket.socket


@dataclass(slots=True)
class _Passed:
    """How much passed under a rule."""

    rule: Way | None = None
    nbytes: int = 0


class _Cut(Exception):
    """A connection ends here."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One way of one connection."""

    link: _Link
    up: bool
    source: socket.socket
    target: socket.socket
    passed: _Passed = field(default_factory=_Passed)


class Proxy:
    """Stands before a server; the rules hold at once, for connections that there are too.

    Everything below `_loop` is touched by its one thread alone. `up_bytes`, what passed to the
    server, is read by anybody.
    """

    def __init__(self, port: int, *, host: str = LOCAL) -> None:
        self.up_bytes = 0
        self.port = 0
        self._to = (host, port)
        self._loop = asyncio.new_event_loop()
        self._ways = {True: FREE, False: FREE}
        self._free_at = {True: 0.0, False: 0.0}
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._listening: socket.socket | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._on_loop(self._listen())

    @property
    def place(self) -> str:
        return f"{LOCAL}:{self.port}"

    def rules(self, *, up: Way | None = None, down: Way | None = None) -> None:
        """Set the rules of a way, to the server or from it; the other keeps its own."""
        self._on_loop(self._change(up, down))

    def delay(self, seconds: float) -> None:
        """Hold bytes for half of a round trip's `seconds` each way."""
        self.rules(up=Way(delay=seconds / 2), down=Way(delay=seconds / 2))

    def free(self) -> None:
        """Let everything pass again."""
        self.rules(up=FREE, down=FREE)

    def refuse(self) -> None:
        """Take no new connections; those that there are stay."""
        self._on_loop(self._deafen())

    def reset(self) -> None:
        """End all connections as a power cut would: with a reset."""
        self._on_loop(self._drop())

    def close(self) -> None:
        """End all connections, and the thread. Any number of times."""
        if self._loop.is_closed():
            return
        self._on_loop(self._deafen())
        self._on_loop(self._drop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOCAL, self.port))
        listening.listen(256)
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        self._listening = listening
        # Not a task: one that is cancelled loses the connection that it has just been given.
        self._loop.add_reader(listening, self._take_one, listening)

    async def _deafen(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    async def _change(self, up: Way | None, down: Way | None) -> None:
        for way, rule in ((True, up), (False, down)):
            if rule is not None:
                self._ways[way] = rule
        self._news.set()
        self._news = asyncio.Event()

    async def _drop(self) -> None:
        for link, task in list(self._links.items()):
            _resets(link.client)
            _resets(link.server)
            await _ended(task)
        # Callbacks of tasks are called one step later.
        while self._links:
            await asyncio.sleep(0)

    def _take_one(self, listening: socket.socket) -> None:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        client.setblocking(False)
        server = socket.socket()
        server.setblocking(False)
        link = _Link(client, server)
        task = self._links[link] = self._loop.create_task(self._serve(link))
        # A task that is cancelled before its first step never comes to a `finally`.
        task.add_done_callback(partial(self._forget, link))

    async def _serve(self, link: _Link) -> None:
        try:
            for one in (link.client, link.server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._connect(link)
            async with asyncio.TaskGroup() as both:
                for up in (True, False):
                    ends = (link.client, link.server)
                    source, target = ends if up else ends[::-1]
                    both.create_task(self._carry(_Lane(link, up, source, target)))
        except* (OSError, _Cut):
            pass

    def _forget(self, link: _Link, task: "asyncio.Task[None]") -> None:
        link.client.close()
        link.server.close()
        del self._links[link]

    async def _connect(self, link: _Link) -> None:
        try:
            await self._loop.sock_connect(link.server, self._to)
        except OSError:
            _resets(link.client)
            raise

    async def _carry(self, lane: _Lane) -> None:
        """Carry bytes one way until their sender has no more."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_HELD)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take(lane, held))
            both.create_task(self._give(lane, held))

    async def _take(self, lane: _Lane, held: "asyncio.Queue[tuple[float, bytes]]") -> None:
        while True:
            data = await self._loop.sock_recv(lane.source, _CHUNK)
            await held.put((self._loop.time() + self._ways[lane.up].delay, data))
            if not data:
                return

    async def _give(self, lane: _Lane, held: "asyncio.Queue[tuple[float, bytes]]") -> None:
        while True:
            due, data = await held.get()
            await asyncio.sleep(due - self._loop.time())
            if not data:
                with contextlib.suppress(OSError):
                    lane.target.shutdown(socket.SHUT_WR)
                return
            await self._pass(lane, memoryview(data))

    async def _pass(self, lane: _Lane, data: memoryview) -> None:
        """Pass bytes on as the rule says that holds when each of them goes."""
        while data:
            rule = self._ways[lane.up]
            if lane.passed.rule is not rule:
                lane.passed = _Passed(rule)
            if rule.stalls:
                await self._news.wait()
                continue
            self._check(lane, rule)
            some = bytes(data[: _most(rule, lane.passed.nbytes)])
            await self._loop.sock_sendall(lane.target, rule.damaged(some, lane.passed.nbytes))
            data = data[len(some) :]
            lane.passed.nbytes += len(some)
            self.up_bytes += lane.up * len(some)
            self._check(lane, rule, behind=True)
            await self._pause(lane.up, rule, len(some))

    def _check(self, lane: _Lane, rule: Way, *, behind: bool = False) -> None:
        if rule.cut_after is None or lane.passed.nbytes < rule.cut_after:
            return
        if behind and not lane.passed.nbytes:
            return
        if rule.resets:
            _resets(lane.link.client)
            _resets(lane.link.server)
        raise _Cut

    async def _pause(self, up: bool, rule: Way, nbytes: int) -> None:
        """Wait until the next byte may go, or there is another rule."""
        now = self._loop.time()
        if rule.trickle is not None:
            until = now + rule.trickle
        elif rule.rate is not None:
            # What a timer was late is made up for.
            until = max(now - _TICK, self._free_at[up]) + nbytes / rule.rate
            self._free_at[up] = until
        else:
            return
        if until > now:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), until - now)


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """Stand a proxy before a port on loopback."""
    with contextlib.closing(Proxy(port)) as proxy:
        yield proxy


def _most(rule: Way, passed: int) -> int:
    """Return how many bytes may go at once."""
    most = _CHUNK
    if rule.trickle is not None:
        most = 1
    elif rule.rate is not None:
        most = max(1, min(most, int(rule.rate * _TICK)))
    return most if rule.cut_after is None else min(most, rule.cut_after - passed)


def _resets(ended: socket.socket) -> None:
    """Have a socket's closing reset its connection."""
    with contextlib.suppress(OSError):
        ended.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
