"""Threads that carry out requests: one that waits for a disk holds up none of another kind."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable

from omlx_cache.control.errors import ControlError

PARALLEL = 4
WAITING = 64


class Workers:
    """Runs calls on daemon threads, at most `PARALLEL` of one operation at once; never blocks.

    Threads begin with the first call and end when none waits. A hung call is left behind when the
    process ends. `_lock` guards `_running` and `_waiting`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: defaultdict[str, int] = defaultdict(int)
        self._waiting: defaultdict[str, deque[Callable[[], None]]] = defaultdict(deque)

    def submit(self, operation: str, call: Callable[[], None]) -> None:
        """Run a call that raises nothing, after those of its operation that came before.

        Raises ControlError when too many of the operation wait, or no thread can be had.
        """
        with self._lock:
            waiting = self._waiting[operation]
            if len(waiting) >= WAITING:
                raise ControlError("busy", f"{WAITING} requests for {operation} wait already")
            waiting.append(call)
            if self._running[operation] >= PARALLEL:
                return
            self._running[operation] += 1
        try:
            threading.Thread(
                target=self._work,
                args=(operation,),
                name=f"omlx-cache-control-{operation}",
                daemon=True,
            ).start()
        except RuntimeError as error:
            with self._lock:
                self._running[operation] -= 1
                if call in waiting:
                    waiting.remove(call)
            raise ControlError("busy", str(error)) from error

    def _work(self, operation: str) -> None:
        while True:
            with self._lock:
                waiting = self._waiting[operation]
                if not waiting:
                    self._running[operation] -= 1
                    return
                call = waiting.popleft()
            call()
