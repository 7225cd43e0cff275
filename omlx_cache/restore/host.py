"""The buffers of a restore in host memory, filled page by page.

Used on the CPU back end for everything. On a GPU it serves restores that are all on the disk and
not encoded: MLX lets the host write into arrays that the device has not used yet.
"""

import threading
from collections.abc import Mapping

from omlx_cache.adapters.base import PAGED
from omlx_cache.arrays.blank import blank_arrays
from omlx_cache.arrays.mlxio import (
    Array,
    HostView,
    carrier,
    evaluate,
    host_view,
    payload_view,
    zeros,
)
from omlx_cache.restore.decode import convert
from omlx_cache.restore.plan import Copy, PageFailed, PageRead, Plan, is_direct
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, PageId, PageInfo, TensorSpec


class HostTargets:
    """The evaluated arrays that a plan fills, and which pages are in them.

    Made and filled by any thread; the arrays are handed over by `arrays` after `close`. Mutable:
    `filled`, `_copying` and `_closed`, guarded by `_guard`, which is not held while bytes are
    copied. Targets that a shorter plan wants alike are taken over from `before`, which it closes,
    with what is in them.
    """

    def __init__(
        self, plan: Plan, *, on_device: bool = False, before: "HostTargets | None" = None
    ) -> None:
        self.plan = plan
        self._guard = threading.Condition()
        self._copying = 0
        self._closed = False
        self.filled: dict[PageId, PageInfo] = {}
        if before is not None:
            before.close()
        kept = {} if before is None else before._reusable(plan)
        fresh = {name: spec for name, spec in plan.targets.items() if name not in kept}
        self._arrays = kept | _fresh(fresh, on_device=on_device)
        self._uneven = bool(kept) or not on_device
        self._views = {n: host_view(array) for n, array in self._arrays.items() if array.size}
        if before is not None:
            for read in plan.reads:
                info = before.filled.get(read.use.page)
                if info is not None and all(copy.tensor in kept for copy in read.copies):
                    self.filled[read.use.page] = info
            # While a view lives, MLX copies the array that it would otherwise update in place.
            before._views = {}

    def _reusable(self, plan: Plan) -> dict[str, Array]:
        """Return the arrays of growing buffers that another plan wants as they are.

        A window's buffers have another order at another position, and a state is valid at one.
        """
        paged = {
            copy.tensor
            for read in plan.reads
            if read.use.page.group == PAGED.name
            for copy in read.copies
        }
        return {
            name: array
            for name, array in self._arrays.items()
            if name in paged and plan.targets[name] == self.plan.targets[name]
        }

    def segments(self, read: PageRead) -> list[HostView] | None:
        """Return the memory that a page fills, in payload order, or None unless it fills it
        exactly. Only for who ends all its reads before the arrays are handed over."""
        return _segments(read, self._views)

    def note(self, read: PageRead) -> None:
        """Record that a page's bytes came through `segments`."""
        with self._guard:
            self.filled[read.use.page] = read.use.info

    def take(self, read: PageRead, page: Page) -> bool:
        """Copy or decode a page into its places; False, and nothing written, once closed.

        Raises PageFailed. An encoded page peaks at its dense size, and evaluates MLX.
        """
        direct = is_direct(read, page.meta)
        with self._guard:
            if self._closed:
                return False
            self._copying += 1
        try:
            if direct:
                scatter(read, payload_view(page.payload), self._views)
            else:
                _decode(read, page, self.plan, self._views)
            with self._guard:
                self.filled[read.use.page] = read.use.info
        finally:
            with self._guard:
                self._copying -= 1
                self._guard.notify_all()
        return True

    def close(self) -> None:
        """Refuse all that comes later, and wait for copies that have begun: for memory only."""
        with self._guard:
            self._closed = True
            self._guard.wait_for(lambda: self._copying == 0)

    def arrays(self) -> dict[str, Array]:
        """Return the targets; what no page of the plan fills is zeros. Every page must be in."""
        self.close()
        if self._uneven:
            # Last: the first write to fresh memory is the dear one, and the copies share that out.
            _clear_gaps(self.plan, self._views)
        self._views = {}
        return self._arrays


def _fresh(specs: Mapping[str, TensorSpec], *, on_device: bool) -> dict[str, Array]:
    """Return evaluated targets, zeros."""
    if not on_device:
        return blank_arrays(specs)
    arrays = {name: zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
    evaluate(list(arrays.values()))
    return arrays


def _clear_gaps(plan: Plan, views: Mapping[str, HostView]) -> None:
    """Zero what no page fills: room to grow must not show what lay in the memory before."""
    filled: dict[str, list[tuple[int, int]]] = {}
    for read in plan.reads:
        for copy in read.copies:
            stop = -1 if copy.hi < 0 else copy.to + copy.hi - copy.lo
            filled.setdefault(copy.tensor, []).append((copy.to, stop))
    for name, view in views.items():
        at = 0
        for start, stop in sorted(filled.get(name, ())):
            if stop < 0:
                break
            view[:, :, at:start] = 0
            at = max(at, stop)
        else:
            view[:, :, at:] = 0


def _decode(read: PageRead, page: Page, plan: Plan, views: Mapping[str, HostView]) -> None:
    """Bring one encoded page into the targets: it peaks at that page's dense size."""
    try:
        arrays = convert(page, read.expected, plan.codecs)
    except ForeignPage as error:
        raise PageFailed(read.use.page, error, joins=True) from error
    sources = {name: host_view(array) for name, array in arrays.items() if array.size}
    for copy in read.copies:
        target, source = views.get(copy.tensor), sources.get(copy.tensor)
        if target is None or source is None:
            continue
        _copy(copy, source, target)


def _segments(read: PageRead, views: Mapping[str, HostView]) -> list[HostView] | None:
    by_tensor: dict[str, list[Copy]] = {}
    for copy in read.copies:
        by_tensor.setdefault(copy.tensor, []).append(copy)
    segments: list[HostView] = []
    for spec in read.expected:
        if spec.nbytes == 0:
            continue
        copies = by_tensor.get(spec.name, [])
        if len(copies) != 1:
            return None
        copy = copies[0]
        view = views[spec.name]
        if copy.hi < 0:
            segments.append(view.reshape(-1))
            continue
        tokens = spec.shape[2]
        if (copy.lo, copy.hi) != (0, tokens):
            return None
        outer = spec.shape[0] * spec.shape[1]
        rows = view.reshape(outer, view.shape[2], -1)
        segments += [rows[o, copy.to : copy.to + tokens].reshape(-1) for o in range(outer)]
    return segments


def scatter(read: PageRead, payload: HostView, views: Mapping[str, HostView]) -> None:
    """Copy a payload's tensors to their targets; targets without a view are passed over."""
    offset = 0
    tensors: dict[str, tuple[TensorSpec, int]] = {}
    for spec in read.expected:
        tensors[spec.name] = (spec, offset)
        offset += spec.nbytes
    for copy in read.copies:
        spec, start = tensors[copy.tensor]
        target = views.get(copy.tensor)
        if target is None or spec.nbytes == 0:
            continue
        source = payload[start : start + spec.nbytes].view(carrier(spec.dtype)).reshape(spec.shape)
        _copy(copy, source, target)


def _copy(copy: Copy, source: HostView, target: HostView) -> None:
    if copy.hi < 0:
        target[...] = source
    else:
        target[:, :, copy.to : copy.to + copy.hi - copy.lo] = source[:, :, copy.lo : copy.hi]
