"""Locks that check the order in which they are taken: every test has them.

`install` replaces what makes locks in `threading`. Callers in this product's packages get a lock
that is named by the place that made it, and that notes which locks its thread holds when it is
taken. Two places whose locks were taken in both orders can deadlock, whether they did or not: the
thread that closes such a circle gets `LockOrderError`, and so does its test (`take_errors`).
A try that does not wait is no part of a circle.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

PACKAGES = "omlx_cache"
make_lock, make_rlock, make_condition = threading.Lock, threading.RLock, threading.Condition


class Mutex(Protocol):
    """What a lock is made of; a scheduler has mutexes of its own."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


class Factory(Protocol):
    """Makes what waits."""

    def mutex(self, place: str, *, reentrant: bool) -> Mutex: ...
    def condition(self, lock: "Lock") -> Any: ...


class LockOrderError(AssertionError):
    """Locks were taken in an order that can deadlock."""


class Lock:
    """A lock that knows its place and its thread. A thread's list of what it holds is mutated by
    it, and by who releases in its place; `_before` and `_instances` are guarded by `_learning`."""

    __slots__ = ("_holder", "_inner", "number", "place", "reentrant")

    def __init__(self, place: str, inner: Mutex, *, reentrant: bool = False) -> None:
        self.place = place
        self.reentrant = reentrant
        self.number = next(_numbers)
        self._inner = inner
        self._holder: list[Lock] | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        held = _held()
        if held and blocking and not (self.reentrant and self in held):
            for other in held:
                if (other.place, self.place) not in _known:
                    _learn(other, self, forever=timeout < 0)
        if not self._inner.acquire(blocking, timeout):
            return False
        held.append(self)
        self._holder = held
        return True

    __enter__ = acquire

    def release(self) -> None:
        holder = self._holder
        if holder is not None and self in holder:
            holder.remove(self)
        self._inner.release()

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        return self._holder is not None and self in self._holder

    # What a condition asks of a lock.

    def _is_owned(self) -> bool:
        return self in _held()

    def _release_save(self) -> int:
        depth = _held().count(self)
        for _ in range(depth):
            self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        for _ in range(depth):
            self.acquire()


_numbers = iter(range(sys.maxsize))
_threads = threading.local()
_learning = make_lock()
_known: set[tuple[str, str]] = set()
_before: dict[str, dict[str, str]] = {}
_instances: dict[tuple[int, int], str] = {}
_errors: list[LockOrderError] = []
factory: Factory | None = None


def _held() -> list[Lock]:
    try:
        return _threads.held  # type: ignore[no-any-return]
    except AttributeError:
        held: list[Lock] = []
        _threads.held = held
        return held


def _learn(first: Lock, then: Lock, *, forever: bool) -> None:
    """Note that a lock is waited for under another; raises LockOrderError where that closes a
    circle. Of two locks of one place only these two must keep their order."""
    here = "".join(traceback.format_list(traceback.extract_stack(limit=12)[:-2]))
    with _learning:
        if first is then:
            if forever:
                _fail(f"{then.place} is waited for by the thread that has it", here)
        elif first.place == then.place:
            there = _instances.get((then.number, first.number))
            if there is not None:
                _fail(f"two locks of {then.place} are taken in both orders", here, there)
            _instances[first.number, then.number] = here
        else:
            way = _way(then.place, first.place)
            if way:
                stacks = [_before[a][b] for a, b in pairwise(way)]
                _fail(" -> ".join([first.place, *way]), here, *stacks)
            _before.setdefault(first.place, {})[then.place] = here
            _known.add((first.place, then.place))


def _way(start: str, end: str, passed: tuple[str, ...] = ()) -> list[str]:
    """Return how one place leads to another, nothing when it does not."""
    if start == end:
        return [end]
    for following in _before.get(start, ()):
        if following not in passed:
            way = _way(following, end, (*passed, start))
            if way:
                return [start, *way]
    return []


def _fail(what: str, *stacks: str) -> None:
    error = LockOrderError("\n\n".join([f"the order of locks can deadlock: {what}", *stacks]))
    _errors.append(error)
    raise error


def take_errors() -> list[LockOrderError]:
    """Return, once, what was found, whoever caught it."""
    found = list(_errors)
    _errors.clear()
    return found


def _place() -> str | None:
    """Return the name of the place that makes a lock, None for one outside this product."""
    frame = sys._getframe(2)
    module = frame.f_globals.get("__name__", "")
    if not module.startswith(PACKAGES):
        return None
    return f"{module}:{frame.f_code.co_qualname}:{frame.f_lineno}"


def _checked(place: str, *, reentrant: bool) -> Lock:
    if factory is not None:
        inner = factory.mutex(place, reentrant=reentrant)
    else:
        inner = make_rlock() if reentrant else make_lock()
    return Lock(place, inner, reentrant=reentrant)


def _lock() -> Any:
    place = _place()
    return make_lock() if place is None else _checked(place, reentrant=False)


def _rlock() -> Any:
    place = _place()
    return make_rlock() if place is None else _checked(place, reentrant=True)


def _condition(lock: Any = None) -> Any:
    place = _place()
    if place is not None and lock is None:
        lock = _checked(place, reentrant=True)
    if factory is not None and isinstance(lock, Lock):
        return factory.condition(lock)
    return make_condition(lock)


def install() -> None:
    """Give this product's modules such locks from now on, those that are imported later too."""
    replaced: dict[str, Callable[..., Any]]
    replaced = {"Lock": _lock, "RLock": _rlock, "Condition": _condition}
    for name, made in replaced.items():
        setattr(threading, name, made)
