"""How much of a recorded token sequence a live cache holds, and copies of the tokens that its
windows are about to lose.

Tokens are recorded by one call and fed to the model by another, in either order, and a cache can be
trimmed behind our back. Pages are keyed by the recorded tokens: one that was never fed would put
the next one's keys and values under a wrong key.
"""

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from omlx_cache.adapters.base import GroupSpec, TokenRange, UnsupportedCache
from omlx_cache.pages.cut import Cutter, Source, read_source
from omlx_cache.pages.layout import Layout, Leaf
from omlx_cache_storage.measures import Counters


class LiveExtent(NamedTuple):
    """The first `end` recorded tokens may be cut from the live cache.

    `exact`: the cache is at `end` itself, so its recurrent state and ring order belong to it.
    `overwritten`: more tokens than this were held before a trim; a ring that had room for fewer has
    lost some of what it seems to hold.
    """

    end: int
    exact: bool
    overwritten: int = 0

    def within(self, known: int) -> "LiveExtent":
        return LiveExtent(min(self.end, known), self.exact and self.end <= known, self.overwritten)


def extent_of(layout: Layout, recorded: int) -> LiveExtent:
    """Return the tokens that a cache holds of a sequence that its caller assigns to it."""
    live = layout.position()
    live = recorded if live is None else live
    return LiveExtent(min(recorded, live), live == recorded)


class LiveProgress:
    """Compares the recorded tokens with the position of the live cache, at each call.

    Used on the model's thread. Evaluates nothing, raises nothing. Of a cache that does not say
    where it is, a replaced first array tells that something was fed. From token to token one layer
    stands for all, as a step of the model moves all of them. `_sure` is the last position at which
    all layers were seen.
    """

    def __init__(self, layout: Layout, restored: int) -> None:
        self._layout = layout
        self._agreed = self._sure = self._highest = restored
        self._lead: Leaf | None = None
        self._doubtful: int | None = None
        self._rewound = 0
        self._guessed: int | None = restored
        self._guided = False
        self._unseen: deque[int] = deque()
        # A reference to a growing buffer would make its next update copy it.
        self._watched = self._first_array() if layout.position() is None else None

    def seen(self, expected: int) -> int:
        """Return where the cache is after `expected` tokens; 0 when unknown."""
        return self._look(expected, expected=True) or 0

    def reached(self, position: int) -> int:
        """Note that `position` tokens should have been fed; return where the cache is."""
        live = self._look(position, expected=True)
        if live == position:
            self._agreed = self._sure = position
            self._doubtful = None
        else:
            self._doubt(self._trusted(live))
        return self._sure if live is None else live

    def follow(self, recorded: int) -> bool:
        """Note that one more token was recorded, with a look at one layer only; False, and nothing
        noted, where `recorded` has to look closer. Its state is right whatever exception ends
        it."""
        lead = self._lead
        live = None if lead is None else lead.adapter.position(lead.cache)
        if live is None or live < self._highest:
            return False
        if live == recorded:
            self._highest = self._agreed = live
            self._doubtful = None
            return True
        return live == recorded - 1 and self._doubtful is not None and self._doubtful <= live

    def recorded(self, before: int, after: int) -> None:
        """Note that tokens [before, after) were recorded, which may be fed already or soon."""
        if self._lead is None:
            self._unseen.append(after - before)
        live = self._look(after)
        if live == after:
            self._agreed = self._sure = after
            self._doubtful = None
        else:
            self._doubt(live if live is not None and live < after else self._trusted(live))

    def agreed(self) -> LiveExtent | None:
        """Return the extent that is beyond doubt, None when the recorded tokens and the live cache
        did not agree the last time."""
        return None if self._doubtful is not None else LiveExtent(self._agreed, True, self._rewound)

    def extent(self, recorded: int) -> LiveExtent:
        live = self._look(recorded)
        end = live if live is not None and live <= recorded else self._trusted(live)
        if live != recorded and self._doubtful is not None:
            end = min(end, self._doubtful)
        return LiveExtent(end, live == end, self._rewound)

    def _trusted(self, live: int | None) -> int:
        """Return the agreed position; where layers disagree now, the one before one layer stood for
        all."""
        return self._sure if live is None else self._agreed

    def _doubt(self, position: int) -> None:
        if self._doubtful is None or position < self._doubtful:
            self._doubtful = position

    def _look(self, count: int, *, expected: bool = False) -> int | None:
        try:
            live = self._layout.position()
        except UnsupportedCache:
            return None
        if live is None:
            return self._guess(count, expected)
        if self._lead is None:
            for one in self._layout.leaves:
                if one.adapter.position(one.cache) is not None and one.adapter.arrays(one.cache):
                    self._lead = one
                    break
        if live < self._highest:
            self._rewound = max(self._rewound, self._highest)
        self._highest = max(self._highest, live)
        return live

    def _guess(self, count: int, expected: bool) -> int | None:
        before, self._watched = self._watched, self._first_array()
        fed = before is not self._watched
        if fed and (expected or not self._guided):
            # A loop of the caller's own, which never said how far it was, is taken at its word.
            self._guessed = count
            self._unseen.clear()
        elif fed and self._unseen and self._guessed is not None:
            self._guessed += self._unseen.popleft()
        elif fed:
            self._guessed = None
        self._guided = self._guided or fed or expected
        return self._guessed

    def _first_array(self) -> object:
        """Return an array that every step replaces; None for an empty cache."""
        leaves = self._layout.leaves
        arrays = leaves[0].adapter.arrays(leaves[0].cache) if leaves else {}
        return next(iter(arrays.values()), None)


class Staging:
    """A session's part of the budget for what cannot be cut later, as the live cache moves on:
    pages without room, and window tokens.

    `release` gives all of it back, also what an error left behind; from any thread, but no
    finalizer, which hands it to `Counters.defer`. `_lock` guards `_sizes`, of what is staged,
    None after `release`.
    """

    def __init__(self, counters: Counters, limit_bytes: int) -> None:
        self._counters = counters
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._sizes: list[int] | None = []

    def reserve(self, nbytes: int) -> bool:
        """Reserve bytes before they are made; False when the budget is spent, and after
        `release`."""
        if not self._counters.take_snapshot(nbytes, self._limit):
            return False
        with self._lock:
            if self._sizes is not None:
                self._sizes.append(nbytes)
                return True
        self._counters.drop_snapshot(nbytes)
        return False

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            if self._sizes is None:
                return
            self._sizes.remove(nbytes)
        self._counters.drop_snapshot(nbytes)

    def release(self) -> None:
        with self._lock:
            sizes, self._sizes = self._sizes, None
        for nbytes in sizes or ():
            self._counters.drop_snapshot(nbytes)


class WindowTrail:
    """Copies each window's tokens once, in small segments, and keeps those of the last window, and
    the order that its rings had.

    After a single-token step a ring holds exactly its window. A restore to one token before the
    end, as of an exact repeat, needs one token more. Mutable by the model's thread: `_reached`, and
    by group `segments` (copies by the position before which their last token is, the oldest first)
    and `phases` (the rings' order by position, as a page carries it).
    """

    def __init__(self, groups: Sequence[GroupSpec], staging: Staging, start: int) -> None:
        self.groups = [group for group in groups if group.kind == "window"]
        self._staging = staging
        self._reached = start
        self.segments: dict[GroupSpec, dict[int, Source]] = defaultdict(dict)
        self.phases: dict[GroupSpec, dict[int, str]] = defaultdict(dict)

    def due_at(self, block_size: int) -> int:
        """Return the position at which a window is about to lose tokens that were not copied."""
        strides = [max(1, min(block_size, group.window - group.keep)) for group in self.groups]
        return self._reached + min(strides, default=sys.maxsize)

    def follow(self, layout: Layout, position: int) -> None:
        """Copy what windows that are at `position` gained since the last call; evaluates that."""
        for group in self.groups:
            first = max(0, position - (group.window - group.keep) - 1)
            known = self.segments[group]
            for stop in [stop for stop in known if not first < stop <= position]:
                self._staging.give_back(known.pop(stop).nbytes)
            live = read_source(layout.groups[group])
            cutter = Cutter([live])
            start = cutter.earliest(TokenRange(max([first, *known]), position))
            cut = cutter.tokens(TokenRange(start, position)) if start < position else None
            if cut is not None and self._staging.reserve(cut.tensors.nbytes):
                known[position] = cutter.copies(TokenRange(start, position), cut)
            self.phases[group] = {
                **{at: p for at, p in self.phases[group].items() if first < at < position},
                position: live.extra,
            }
        self._reached = position
