"""mlx-vlm's BatchGenerator, whose prompts are restored from a store and kept in it."""

import logging
import weakref
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_vlm.generate.ar import BatchGenerator, GenerationBatch

from omlx_cache.integrations.mlx_vlm.coordinator import StoreCoordinator
from omlx_cache.integrations.mlx_vlm.form import form_of
from omlx_cache.integrations.mlx_vlm.manager import ApcManager
from omlx_cache.integrations.mlx_vlm.media import with_media
from omlx_cache.integrations.mlx_vlm.under_way import UnderWay

_log = logging.getLogger(__name__)


class _Decoding(GenerationBatch):  # type: ignore[misc]
    """A batch that tells of the rows that end in a step, before they are dropped. `ending` is a
    weak reference: the generator owns the batch."""

    ending: Any
    _stepping = False

    def next(self) -> Any:
        self._stepping = True
        try:
            return super().next()
        finally:
            self._stepping = False

    def filter(self, keep: Sequence[int]) -> None:
        tell = self.ending()
        if tell is not None and self._stepping:
            tell(self, [row for row in range(len(self.uids)) if row not in set(keep)])
        super().filter(keep)


class CachedBatchGenerator(BatchGenerator):  # type: ignore[misc]
    """BatchGenerator's arguments; with an ApcManager as `apc_manager` its prompts are kept in that
    manager's store. With another manager, or none, or a model that cannot be identified, it is its
    base class."""

    _under_way: UnderWay | None = None

    def __init__(self, *args: Any, apc_manager: Any = None, **options: Any) -> None:
        ours = isinstance(apc_manager, ApcManager)
        super().__init__(*args, apc_manager=None if ours else apc_manager, **options)
        if ours:
            try:
                attach(self, apc_manager)
            except Exception:
                _log.exception("prompts are computed without a cache")

    def _apc_pick_for(self, sequence: Any) -> Any:
        picked = super()._apc_pick_for(sequence)
        if self._under_way is not None and self.apc.asked is not None:
            self._under_way.begin(sequence[0], self.apc.asked)
            self.apc.asked = None
        return picked

    def next(self, **options: Any) -> Any:
        if self._under_way is None:
            return super().next(**options)
        decoding = self._generation_batch
        if type(decoding) is GenerationBatch:
            decoding.__class__ = _Decoding
            decoding.ending = weakref.WeakMethod(self._keep_answers)
        prompts, generated = super().next(**options)
        self._under_way.computed(prompts)
        self._under_way.answered(generated)
        return prompts, generated

    def remove(self, uid: int) -> bool:
        """Give a request up; what of it has been computed is kept."""
        if self._under_way is not None:
            with mx.stream(self._stream):
                self._keep_begun(uid)
                batch = self._generation_batch
                if uid in batch.uids:
                    self._keep(batch, batch.uids.index(uid), self._under_way.sequence(uid))
            self._under_way.end(uid)
        return bool(super().remove(uid))

    def _keep_answers(self, batch: Any, rows: Sequence[int]) -> None:
        """Keep rows that end in a step: a batch's caches hold what it has said, the last included,
        which nobody has been told yet."""
        under_way = self._under_way
        if under_way is None:
            return
        said = batch._current_tokens.tolist()
        for row in rows:
            self._keep(batch, row, under_way.sequence(batch.uids[row], said[row]))

    def _keep(self, batch: Any, row: int, sequence: tuple[list[int], int] | None) -> None:
        if sequence is not None and isinstance(batch, _Decoding):
            tokens, extra_hash = sequence
            self.apc.commit(batch.prompt_cache, tokens, batch_idx=row, extra_hash=extra_hash)

    def _keep_begun(self, uid: int) -> None:
        batch = self._prompt_batch
        if batch is None or uid not in batch.uids or not batch._apc_meta:
            return
        row = batch.uids.index(uid)
        columns, padded = batch._processed_prompt_columns, batch._right_pad_per_row is not None
        if padded and columns > batch._suffix_lens[row]:
            # Its padding is among its tokens until the batch is done.
            return
        meta = batch._apc_meta[row]
        computed = batch._row_real_tokens_processed(row)
        if computed > meta["prefix_len"]:
            self.apc.commit(
                batch.prompt_cache,
                meta["full_input_ids"][:computed],
                batch_idx=row,
                extra_hash=meta["extra_hash"],
            )

    def _apc_extra_hash(self, prompt_kwargs: dict[str, Any]) -> int:
        known = int(super()._apc_extra_hash(prompt_kwargs))
        if not isinstance(self.apc_manager, ApcManager):
            return known
        return with_media(known, prompt_kwargs or {})

    def _build_mixed_prompt_batch(self, sequences: Sequence[Any]) -> Any:
        batch = super()._build_mixed_prompt_batch(sequences)
        if batch is not None and batch._token_context:
            # Penalties look at the whole prompt, the part that was restored included.
            batch._token_context = [list(sequence[1]) for sequence in sequences]
        return batch


def attach(generator: Any, manager: ApcManager) -> None:
    """Have a BatchGenerator that has computed nothing yet use a manager; evaluates samples of the
    model's weights when the manager has not seen it."""
    if not isinstance(generator, CachedBatchGenerator):
        kind = type(generator)
        generator.__class__ = (
            CachedBatchGenerator
            if kind is BatchGenerator
            else type(f"Cached{kind.__name__}", (CachedBatchGenerator, kind), {})
        )
    form = form_of(generator)
    if form.policy is not None and form.policy.is_turboquant:
        # Restored rows of different lengths are padded, which a batch of these caches cannot be.
        generator.prefill_batch_size = 1
    sequences = manager.bind(generator.model, form)
    plain = (
        generator.kv_bits is None
        and generator.draft_model is None
        and hasattr(generator.model, "make_cache")
    )
    generator.apc = StoreCoordinator(manager, generator.model, sequences, plain=plain)
    generator.apc_manager = manager
    generator.apc_mode = generator.apc.legacy_mode
    generator._under_way = UnderWay()
