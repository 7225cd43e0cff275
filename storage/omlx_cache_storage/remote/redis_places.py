"""Which server has which key: a single one, the master that Sentinels name, or a cluster's nodes.

The client's own classes for clusters and Sentinels try again for many times a time-out, and after a
fault one command after the other: here all commands follow a redirection at once, and every call
ends in time.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, ReadOnlyError

from omlx_cache_storage.remote.address import Host
from omlx_cache_storage.remote.engine import RemoteError
from omlx_cache_storage.remote.redis_wire import Answers, Command, Wire
from omlx_cache_storage.remote.slabs import Sink

_ROUNDS = 4
"""How often a call sends what is left: to where it was sent on, and once more after a fault."""
AWAY_SECONDS = 5.0
_ONE_VALUE = ("GET", "GETRANGE", "SET")
_SLOTS = 16384
_ASKING: Command = ("ASKING",)


class Places(Protocol):
    """Sends commands where they belong. Any thread."""

    def answers(self, commands: Sequence[Command], sink: Sink | None = None) -> Answers:
        """Return the answer to each command, of which the second word is the key; errors stand
        where the answers would. With `sink`, all of them read one value each, which is received
        there. Raises RemoteError when a server cannot be reached."""
        ...

    def anyone(self) -> Host:
        """Return a server that has values; may ask for one."""
        ...


class Single:
    """One server."""

    def __init__(self, wire: Wire, host: Host) -> None:
        self._wire = wire
        self._host = host

    def answers(self, commands: Sequence[Command], sink: Sink | None = None) -> Answers:
        answers = self._wire.send({self._host: commands}, sink)[self._host]
        if any(isinstance(answer, AskError) for answer in answers):
            raise RemoteError("error", "the server is one of a cluster: use redis+cluster://")
        return answers

    def anyone(self) -> Host:
        return self._host


class Named:
    """The master of a service, as Sentinels name it. It is asked for again after a fault, and the
    commands are sent once more if it is another one by then.

    `_master` is replaced whole, by any thread.
    """

    def __init__(self, wire: Wire, sentinels: Sequence[Host], service: str) -> None:
        self._wire = wire
        self._sentinels = list(sentinels)
        self._service = service
        self._master: Host | None = None

    def answers(self, commands: Sequence[Command], sink: Sink | None = None) -> Answers:
        asked = self.anyone()
        try:
            answers = self._wire.send({asked: commands}, sink)[asked]
        except RemoteError as error:
            if not self._moved(asked, error.reason):
                raise
        else:
            if not any(isinstance(answer, ReadOnlyError) for answer in answers):
                return answers
            if not self._moved(asked, "lost"):
                return answers
        master = self.anyone()
        return self._wire.send({master: commands}, sink)[master]

    def anyone(self) -> Host:
        master = self._master
        if master is None:
            master = self._master = self._find()
            self._wire.only([master])
        return master

    def _moved(self, asked: Host, reason: str) -> bool:
        """Ask who the master is; False when it is the same, or a time-out was spent already."""
        self._master = None
        return reason in ("refused", "lost") and self.anyone() != asked

    def _find(self) -> Host:
        worst: RemoteError | None = None
        for sentinel in list(self._sentinels):
            try:
                named = self._ask(sentinel)
            except RemoteError as error:
                if worst is None or error.reason == "auth":
                    worst = error
                continue
            if named is not None:
                # The first to know is asked first the next time.
                self._sentinels = [sentinel, *(s for s in self._sentinels if s != sentinel)]
                return Host(named[0].decode(), int(named[1]))
        raise worst or RemoteError("error", f"no Sentinel knows a master named {self._service!r}")

    def _ask(self, sentinel: Host) -> Any:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        try:
            return self._wire.ask(sentinel, *question, anonymously=True)
        except RemoteError as error:
            # A Sentinel has users of its own; where it wants one, it is the same.
            if error.reason != "auth":
                raise
        return self._wire.ask(sentinel, *question)


class _Redirect(NamedTuple):
    """Where a command goes: None for a slot that no node serves."""

    host: Host | None
    asking: bool


class Sharded:
    """The nodes of a cluster, by slot of the key.

    A node that is not reached, while others are, is taken to have nothing for `AWAY_SECONDS`, and
    to take nothing. `_lock`, which is held over no I/O, guards `_owners`, `_stale` and `_away`
    (nodes, with until when).
    """

    def __init__(self, wire: Wire, seeds: Sequence[Host], seconds: float) -> None:
        self._wire = wire
        self._seeds = list(seeds)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._owners: list[Host | None] = []
        self._stale = True
        self._away: dict[Host, float] = {}

    def answers(self, commands: Sequence[Command], sink: Sink | None = None) -> Answers:
        owners = self._map()
        slots = [key_slot(str(command[1]).encode()) for command in commands]
        targets = [_Redirect(owners[slot], False) for slot in slots]
        answers: Answers = [None] * len(commands)
        left = list(range(len(commands)))
        tried_again = False
        for _round in range(_ROUNDS):
            left = self._without_away(commands, targets, left, answers)
            try:
                self._send(commands, targets, left, answers, sink)
            except RemoteError as error:
                self._forget()
                if error.reason == "timeout":
                    # Too late for this call; the next ones need not wait for that node.
                    self._note_away({targets[at].host for at in left})
                if tried_again or error.reason not in ("refused", "lost"):
                    raise
                # A replica may have taken over what the node had.
                tried_again = True
                owners, before = self._map(), targets
                targets = [_Redirect(owners[slot], False) for slot in slots]
                if targets == before and not self._note_away({targets[at].host for at in left}):
                    raise
                continue
            left = [at for at in left if isinstance(answers[at], AskError)]
            if not left:
                break
            for at in left:
                targets[at] = self._redirect(answers[at], targets[at].host, slots[at])
        return answers

    def anyone(self) -> Host:
        known = {host for host in self._map() if host is not None}
        return random.choice(list(known - self._gone() or known))

    def _gone(self) -> set[Host]:
        now = time.monotonic()
        with self._lock:
            return {host for host, until in self._away.items() if until > now}

    def _note_away(self, hosts: Iterable[Host | None]) -> bool:
        """Find out which nodes are not reached; False when all are, or none."""
        gone = {host for host in hosts if host is not None and not self._is_reached(host)}
        with self._lock:
            known = {host for host in self._owners if host is not None}
        if not gone or known <= gone | self._gone():
            return False
        with self._lock:
            self._away |= dict.fromkeys(gone, time.monotonic() + AWAY_SECONDS)
        return True

    def _is_reached(self, host: Host) -> bool:
        try:
            self._wire.ask(host, "PING")
        except RemoteError as error:
            return error.reason not in ("refused", "lost", "timeout")
        return True

    def _without_away(
        self,
        commands: Sequence[Command],
        targets: Sequence[_Redirect],
        left: Sequence[int],
        answers: Answers,
    ) -> list[int]:
        """Answer for nodes that are away as one would that has nothing; return what is left."""
        gone = self._gone()
        there = []
        for at in left:
            host = targets[at].host
            if host is not None and host not in gone:
                there.append(at)
            else:
                answers[at] = _nothing(commands[at])
        return there

    def _send(
        self,
        commands: Sequence[Command],
        targets: Sequence[_Redirect],
        left: Sequence[int],
        answers: Answers,
        sink: Sink | None,
    ) -> None:
        batches: dict[Host, list[Command]] = defaultdict(list)
        places: dict[Host, list[int | None]] = defaultdict(list)
        for at in left:
            host, asking = targets[at]
            assert host is not None
            if asking:
                batches[host].append(_ASKING)
                places[host].append(None)
            batches[host].append(commands[at])
            places[host].append(at)
        for host, some in self._wire.send(batches, sink).items():
            for place, answer in zip(places[host], some, strict=True):
                if place is not None:
                    answers[place] = answer

    def _redirect(self, answer: Any, asked: Host | None, slot: int) -> _Redirect:
        host = Host(answer.host or (asked.name if asked else ""), int(answer.port))
        # To the client, MOVED is a kind of ASK. The latter is said of a slot on its way, of which
        # this key is there already: the map stays.
        if not isinstance(answer, MovedError):
            return _Redirect(host, True)
        with self._lock:
            self._stale = True
            if self._owners:
                self._owners = [*self._owners[:slot], host, *self._owners[slot + 1 :]]
        return _Redirect(host, False)

    def _forget(self) -> None:
        with self._lock:
            self._stale = True

    def _map(self) -> Sequence[Host | None]:
        """Return the owner of each slot; asks for it when it is not known, or known to be wrong."""
        with self._lock:
            owners = self._owners
            if not self._stale and owners:
                return owners
        known = list({host for host in owners if host is not None})
        random.shuffle(known)
        gone = self._gone()
        worst: RemoteError | None = None
        until = time.monotonic() + self._seconds
        # One that hangs would take all of the time.
        for host in sorted(dict.fromkeys([*known, *self._seeds]), key=lambda host: host in gone):
            if time.monotonic() > until:
                break
            try:
                owners = _owners(host, self._wire.ask(host, "CLUSTER", "SLOTS"))
            except RemoteError as error:
                worst = error if worst is None or error.reason == "auth" else worst
                continue
            with self._lock:
                self._owners, self._stale = owners, False
            self._wire.only([*self._seeds, *{host for host in owners if host is not None}])
            return owners
        raise worst or RemoteError("timeout", "no node of the cluster said who has what")


def _nothing(command: Command) -> Any:
    """Return what a node answers that has nothing, and takes nothing."""
    return [] if command[0] == "ZRANGE" else None if command[0] in _ONE_VALUE else 0


def _owners(asked: Host, ranges: Any) -> list[Host | None]:
    owners: list[Host | None] = [None] * _SLOTS
    try:
        for first, last, (name, port, *_), *_ in ranges:
            # A node that does not know its own address leaves it out.
            said = bytes(name or b"").decode().strip("?")
            owners[first : last + 1] = [Host(said or asked.name, int(port))] * (last + 1 - first)
    except (TypeError, ValueError):
        raise RemoteError("error", "the cluster's map of slots cannot be read") from None
    if len(owners) != _SLOTS or not any(owners):
        raise RemoteError("throttled", "no node of the cluster serves any slot")
    return owners
