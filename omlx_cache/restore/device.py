"""The buffers of a restore on a GPU.

One MLX operation costs about 8 us for any size. One joins the pages of a batch, one more brings
them to their places in buffers of several tensors, which are made owned one by one in the end. Each
batch is evaluated before the next, as an update of an unevaluated array would copy the buffer. No
host view is taken: that moves an array through the host.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import mlx.core as mx

from omlx_cache.arrays.mlxio import (
    DTYPES,
    TOKEN_AXIS,
    Array,
    evaluate,
    owned_copy,
    widest,
)
from omlx_cache.pages.layout import page_arrays
from omlx_cache.restore.decode import DecodedPiece, columns_of, decode_joined, in_order
from omlx_cache.restore.plan import PageFailed, PageRead, Plan, Span, Stretch, batches, is_direct
from omlx_cache.restore.targets import Targets
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import ITEM_BYTES, Page, PageId

SHARE = 8
"""The part of a restore that is one batch, or one group of tensors: twice in memory for a
moment."""

Names = tuple[str, ...]


class DeviceTargets(Targets):
    """The arrays that a plan fills. Use it on the model's thread.

    Groups of targets are rows of items of some width: (targets and their outer axes, tokens, the
    other axes). Plain pages wait aside until they are some; encoded ones are decoded together, at
    the end. Groups that a shorter plan wants alike are taken over from `before`.
    """

    def __init__(self, plan: Plan, *, before: Targets | None = None, apart: bool = False) -> None:
        super().__init__(plan, before)
        self.batch_bytes: int = max(1, plan.nbytes // SHARE)
        self._groups: dict[Names, Array] = {}
        if isinstance(before, DeviceTargets):
            # So that its groups are those of this plan too.
            self.batch_bytes = before.batch_bytes
            self._groups = {
                n: rows for n, rows in before._groups.items() if self.kept.issuperset(n)
            }
        self._whole: dict[str, Array] = {}
        self._plain: list[tuple[PageRead, Page]] = []
        self._encoded: list[tuple[PageRead, Page]] = []

    def take_all(self, reads: Sequence[PageRead], pages: Mapping[PageId, Page]) -> None:
        """Bring pages that are in memory to their places as soon as they are some; raises
        PageFailed."""
        for read in reads:
            page = pages[read.use.page]
            if any(span.hi < 0 for span in read.spans):
                self._take_whole(read, page)
            else:
                direct = is_direct(read, page.meta)
                (self._plain if direct else self._encoded).append((read, page))
        if sum(page.meta.nbytes for _, page in self._plain) >= self.batch_bytes // 4:
            self._join_plain()

    def aside(self) -> dict[PageId, Page]:
        return {read.use.page: page for read, page in (*self._plain, *self._encoded)}

    def arrays(self) -> dict[str, Array]:
        """Return the targets, evaluated and owned; what no page fills is zeros. Every page of the
        plan must be in. Raises PageFailed."""
        self._join_plain()
        decoded = self._decoded()
        if self.kept:
            for names, rows in self._groups.items():
                if names[0] in self.kept:
                    rows[:, self.plan.position :] = 0
            evaluate(list(self._groups.values()))
        made = self._whole | self._owned()
        for name, (array, pieces) in decoded.items():
            plain = made.setdefault(name, array)
            for piece in pieces if plain is not array else ():
                stop = piece.to + piece.hi - piece.lo
                plain[:, :, piece.to : stop] = array[:, :, piece.to : stop]
        for name, spec in self.plan.targets.items():
            if name not in made:
                made[name] = mx.zeros(spec.shape, DTYPES[spec.dtype])
        evaluate(list(made.values()))
        return made

    def _join_plain(self) -> None:
        reads, pages = [read for read, _ in self._plain], self.aside()
        for batch in batches(reads, most_bytes=self.batch_bytes):
            self._join(batch, [pages[read.use.page].payload for read in batch])
            self.note(batch)
        self._plain = []

    def _join(self, batch: Sequence[PageRead], payloads: Sequence[Array]) -> None:
        """Bring plain pages, several of them whole and in order, to their places from the first
        one's on."""
        first = batch[0]
        changed: list[Array] = []
        for stretch, span in product(first.geometry.stretches, first.spans):
            if span.track == stretch.track:
                joined = _joined(stretch, span, payloads)
                each = joined.shape[0] // len(stretch.names)
                stop = span.to + joined.shape[1]
                together = max(1, self.batch_bytes // self.plan.targets[stretch.names[0]].nbytes)
                for index in range(0, len(stretch.names), together):
                    names = stretch.names[index : index + together]
                    target = self._group(names)
                    target[:, span.to : stop] = joined[index * each : (index + len(names)) * each]
                    changed.append(target)
        evaluate(changed)

    def _group(self, names: Names) -> Array:
        if names not in self._groups:
            spec = self.plan.targets[names[0]]
            carried, each = widest(_width(spec.shape, spec.dtype), 0)
            outer = len(names) * prod(spec.shape[:TOKEN_AXIS])
            self._groups[names] = mx.zeros((outer, spec.shape[TOKEN_AXIS], each), dtype=carried)
        return self._groups[names]

    def _owned(self) -> dict[str, Array]:
        made: dict[str, Array] = {}
        for names in list(self._groups):
            rows = self._groups.pop(names)
            each = rows.shape[0] // len(names)
            for index, name in enumerate(names):
                spec = self.plan.targets[name]
                own = mx.contiguous(rows[index * each : (index + 1) * each])
                made[name] = own.view(DTYPES[spec.dtype]).reshape(spec.shape)
            evaluate([made[name] for name in names])
        return made

    def _take_whole(self, read: PageRead, page: Page) -> None:
        if not is_direct(read, page.meta):
            raise PageFailed(read.use.page, ForeignPage("a snapshot is encoded"), joins=True)
        # The page is not pinned.
        copies = {
            n: owned_copy(a.reshape(-1)).reshape(a.shape)
            for n, a in page_arrays(page.meta.tensors, page.payload).items()
        }
        evaluate(list(copies.values()))
        self._whole |= copies

    def _decoded(self) -> dict[str, tuple[Array, list[DecodedPiece]]]:
        """Return by target what the encoded pages make of it, zeros elsewhere, and where."""
        pieces: dict[int, list[DecodedPiece]] = {}
        for read, _page in self._encoded:
            for span in read.spans:
                piece = DecodedPiece(span.to, span.lo, span.hi, read.use.page)
                pieces.setdefault(span.track, []).append(piece)
        pages = self.aside()
        made: dict[str, tuple[Array, list[DecodedPiece]]] = {}
        targets, tracks = self.plan.targets, self.plan.tracks
        try:
            for track, found in pieces.items():
                ordered = in_order(found)
                names = [n for n, at in tracks.items() if at == track and targets[n].nbytes]
                arrays = decode_joined(targets, names, columns_of(ordered, pages), self.plan.codecs)
                made |= {name: (array, ordered) for name, array in arrays.items()}
        except ForeignPage as error:
            raise PageFailed(self._encoded[-1][0].use.page, error, joins=True) from error
        self.note(read for read, _page in self._encoded)
        self._encoded = []
        return made


def _joined(stretch: Stretch, span: Span, payloads: Sequence[Array]) -> Array:
    shape = stretch.shape
    carried, each = widest(_width(shape, stretch.dtype), stretch.offset)
    rows = len(stretch.names) * prod(shape[:TOKEN_AXIS])
    stop = stretch.offset + stretch.nbytes * len(stretch.names)
    blocks = [
        payload[stretch.offset : stop].view(carried).reshape(rows, shape[TOKEN_AXIS], each)
        for payload in payloads
    ]
    if len(blocks) > 1:
        return mx.concatenate(blocks, axis=1)
    whole = (span.lo, span.hi) == (0, shape[TOKEN_AXIS])
    return blocks[0] if whole else blocks[0][:, span.lo : span.hi]


def _width(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape[TOKEN_AXIS + 1 :]) * ITEM_BYTES[dtype]
