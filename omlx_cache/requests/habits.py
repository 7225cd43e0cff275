"""What happens again and again in a namespace: answers that come back rewritten, and a line at the
head of prompts that changes and makes all that follows new."""

import logging
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace

from omlx_cache import reasons
from omlx_cache.requests.explanation import Explanation
from omlx_cache.requests.record import RequestRecord
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import BlockKey

_log = logging.getLogger(__name__)

NAMESPACES = 64
TURNS = 8
"""The latest continued conversations by which a template is judged."""
PROMPTS = 5
SPOILED = 3
"""So many of the latest prompts, and a line counts as one that keeps changing."""
NEAR_TOKENS = 64
"""How far a changing line may move and still be the same."""
LEAST_TOKENS = 256
"""Less than this is not worth a word."""


@dataclass(frozen=True, slots=True)
class ChangingLine:
    """A place at which prompts part and go on alike: how often, and what was computed again."""

    namespace: str
    position: int
    requests: int = 0
    of: int = 0
    tokens: int = 0
    seconds: float = 0.0
    last_request: int = 0


@dataclass(slots=True)
class _Habit:
    openings: deque[int | None] = field(default_factory=lambda: deque(maxlen=TURNS))
    partings: deque[int | None] = field(default_factory=lambda: deque(maxlen=PROMPTS))
    line: ChangingLine | None = None
    spoiled: set[int] = field(default_factory=set)
    said: bool = False


class Habits:
    """Bounded. Any thread may call. `_lock` guards `_habits`, the latest namespace last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._habits: OrderedDict[BlockKey, _Habit] = OrderedDict()

    @uninterrupted
    def note(self, namespace: BlockKey, number: int, told: Explanation) -> None:
        """Take note of a request's explanation."""
        with self._lock:
            habit = self._habits.setdefault(namespace, _Habit())
            self._habits.move_to_end(namespace)
            if told.position is not None and told.opening is not None:
                habit.openings.append(told.opening if _is_dropped(told) else None)
            elif told.position is not None and told.position == told.other_tokens:
                habit.openings.append(None)
            parted = told.position if _spoils(told) else None
            habit.partings.append(parted)
            if parted is not None:
                self._count(habit, namespace, number, parted)
            while len(self._habits) > NAMESPACES:
                self._habits.popitem(last=False)

    @uninterrupted
    def opening(self, namespace: BlockKey) -> int | None:
        """Return how many tokens before its end a prompt is left by the next one, when two or more
        of the latest conversations, and most of them, came back so."""
        with self._lock:
            habit = self._habits.get(namespace)
            if habit is None:
                return None
            rewritten = [opening for opening in habit.openings if opening is not None]
            if len(rewritten) < 2 or 2 * len(rewritten) <= len(habit.openings):
                return None
            return max(0, *rewritten)

    @uninterrupted
    def ended(self, record: RequestRecord) -> None:
        """Count what a request cost that such a line spoiled, and say it once."""
        try:
            namespace = BlockKey(bytes.fromhex(record.namespace))
        except ValueError:
            return
        with self._lock:
            habit = self._habits.get(namespace)
            if habit is None or habit.line is None or record.number not in habit.spoiled:
                return
            habit.spoiled.discard(record.number)
            habit.line = line = replace(
                habit.line,
                tokens=habit.line.tokens + record.computed_tokens,
                seconds=habit.line.seconds + record.compute_seconds,
            )
            near = [at for at in habit.partings if at is not None and _is_near(at, line)]
            says = not habit.said and len(near) >= SPOILED
            habit.said = habit.said or says
        if says:
            _log.warning(
                "%d of the last %d prompts part from one before at token %d and go on alike: "
                "a date, an id or a counter there makes all that follows new; %d tokens computed "
                "so far for that, %.1f s. `omlx-cache why` shows the place.",
                len(near),
                len(habit.partings),
                line.position + 1,
                line.tokens,
                line.seconds,
            )

    @uninterrupted
    def lines(self) -> list[ChangingLine]:
        """Return the lines that keep changing now."""
        with self._lock:
            found = []
            for habit in self._habits.values():
                line = habit.line
                if line is not None:
                    near = [at for at in habit.partings if at is not None and _is_near(at, line)]
                    if len(near) >= SPOILED:
                        found.append(replace(line, requests=len(near), of=len(habit.partings)))
            return found

    def _count(self, habit: _Habit, namespace: BlockKey, number: int, at: int) -> None:
        if habit.line is None or not _is_near(at, habit.line):
            habit.line = ChangingLine(namespace.hex(), at)
            habit.spoiled.clear()
            habit.said = False
        habit.line = replace(habit.line, position=at, last_request=number)
        habit.spoiled.add(number)
        if len(habit.spoiled) > 512:
            habit.spoiled.pop()


def _is_dropped(told: Explanation) -> bool:
    """True when an answer came back without most of what was computed for it; one whose end was
    trimmed is still found by all the rest."""
    if told.position is None or told.opening is None:
        return False
    prompt = told.position + told.opening
    return 2 * max(0, -told.opening) < max(1, told.other_tokens - prompt)


def _is_near(at: int, line: ChangingLine) -> bool:
    return abs(at - line.position) <= NEAR_TOKENS


def _spoils(told: Explanation) -> bool:
    """True for a prompt that parts from another, goes on alike, and lost much by that."""
    parts = told.reason in (reasons.DIVERGED, reasons.SNAPSHOT_MISSING, reasons.WINDOW_NOT_HELD)
    return parts and told.alike and told.tokens - told.restored >= LEAST_TOKENS
