"""mlx-vlm's BatchGenerator, whose prompts are restored from a store and kept in it."""

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_vlm.apc import APCCoordinator
from mlx_vlm.generate.ar import BatchGenerator, GenerationBatch
from mlx_vlm.models.cache import make_prompt_cache

from omlx_cache.integrations.host_server import MLX_VLM, MLX_VLM_GENERATOR, UnusableHost
from omlx_cache.integrations.mlx_vlm.manager import ApcManager, StoreCoordinator
from omlx_cache.integrations.mlx_vlm.sequences import UnderWay, form_of, with_media

_log = logging.getLogger(__name__)


class ApcBatchGenerator(BatchGenerator):  # type: ignore[misc]
    """With an ApcManager as `apc_manager` it keeps prompts in that manager's store; with another
    one, or a model that cannot be identified, it is its base class."""

    def __init__(self, *args: Any, apc_manager: Any = None, **options: Any) -> None:
        ours = isinstance(apc_manager, ApcManager)
        super().__init__(*args, apc_manager=None if ours else apc_manager, **options)
        if ours and not attach(self, apc_manager) and apc_manager.own is not None:
            coordinator = APCCoordinator(apc_manager.own, self.model)
            if coordinator.enabled:
                self.apc, self.apc_manager = coordinator, apc_manager.own
                self.apc_mode = coordinator.legacy_mode


def attach(generator: Any, manager: ApcManager) -> bool:
    """Have a BatchGenerator that has computed nothing yet use a manager; False, and logged, where
    it cannot. Evaluates samples of the weights of a model that the manager has not seen."""
    try:
        # A manager is one model's; after each pause its server makes another generator.
        if manager.sequences is None and not MLX_VLM.takes(
            generator,
            MLX_VLM_GENERATOR,
            lambda: generator.model,
            require=manager.store.settings.require,
            make_cache=lambda: list(make_prompt_cache(generator.model)),
        ):
            return False
        form = form_of(generator)
        sequences = manager.bind(generator.model, form)
        plain = (
            generator.kv_bits is None
            and generator.draft_model is None
            and hasattr(generator.model, "make_cache")
        )
        coordinator = StoreCoordinator(manager, generator.model, sequences, plain=plain)
    except UnusableHost:
        raise
    except Exception:
        _log.exception("prompts are not kept in the store")
        return False
    if form.policy is not None and form.policy.is_turboquant:
        # Restored rows of different lengths are padded, which a batch of these caches cannot be.
        generator.prefill_batch_size = 1
    generator.apc, generator.apc_manager = coordinator, manager
    generator.apc_mode = coordinator.legacy_mode
    requests = _Requests(generator, coordinator)
    generator.next, generator.remove = requests.next, requests.remove
    generator._apc_pick_for = requests.pick
    generator._apc_extra_hash = requests.extra_hash
    generator._build_mixed_prompt_batch = requests.batch
    return True


class _Requests:
    """Follows a generator's requests in place of its methods; does not keep it alive. Mutable, by
    the generation thread: `_under_way`, by uid, and `_stepping`, while a step is computed."""

    def __init__(self, generator: Any, coordinator: StoreCoordinator) -> None:
        self._generator = weakref.ref(generator)
        self._kind: Any = type(generator)
        self._apc = coordinator
        self._under_way: dict[int, UnderWay] = {}
        self._stepping = False

    def pick(self, sequence: Any) -> Any:
        picked = self._kind._apc_pick_for(self._generator(), sequence)
        asked, self._apc.asked = self._apc.asked, None
        if asked is not None:
            self._under_way[sequence[0]] = asked
        return picked

    def extra_hash(self, prompt_kwargs: dict[str, Any]) -> int:
        known = int(self._kind._apc_extra_hash(self._generator(), prompt_kwargs))
        return with_media(known, prompt_kwargs or {})

    def batch(self, sequences: Sequence[Any]) -> Any:
        """Make a batch whose penalties look at whole prompts, restored tokens included."""
        batch = self._kind._build_mixed_prompt_batch(self._generator(), sequences)
        if batch is not None and getattr(batch, "_token_context", None):
            batch._token_context = [list(sequence[1]) for sequence in sequences]
        return batch

    def next(self, **options: Any) -> Any:
        generator: Any = self._generator()
        self._watch(generator._generation_batch)
        self._stepping = True
        try:
            prompts, generated = self._kind.next(generator, **options)
        finally:
            self._stepping = False
        self._tried(self._note, prompts, generated)
        return prompts, generated

    def _tried(self, keep: Callable[..., None], *asked: Any) -> None:
        """Keep or note something; what another version lacks for it fails no request."""
        try:
            keep(*asked)
        except Exception:
            _log.exception("what was computed is not kept")

    def _note(self, prompts: Sequence[Any], generated: Sequence[Any]) -> None:
        """Tell the store's log which tokens a step computed and answered."""
        rows = [(row, row.prompt_tokens - row.cached_tokens) for row in prompts]
        everything = sum(own for _row, own in rows)
        for row, own in rows:
            request = self._under_way.get(row.uid)
            if request is not None and own > 0:
                # A row's share of a batch's time is that of its tokens; a last token alone is a
                # step of decoding.
                request.record.computed(
                    own, 0.0 if own == 1 else row.prompt_time * own / everything
                )
        for response in generated:
            request = self._under_way.get(response.uid)
            if request is not None:
                request.answer.append(int(response.token))
            if response.finish_reason is not None:
                self._end(response.uid)

    def remove(self, uid: int) -> bool:
        """Give a request up; its computed blocks are kept."""
        generator: Any = self._generator()
        with mx.stream(generator._stream):
            self._tried(self._keep_begun, generator._prompt_batch, uid)
            batch = generator._generation_batch
            if uid in batch.uids:
                self._tried(self._keep, batch, batch.uids.index(uid))
        self._end(uid)
        return bool(self._kind.remove(generator, uid))

    def _end(self, uid: int) -> None:
        request = self._under_way.pop(uid, None)
        if request is not None:
            request.record.ended(len(request.answer))

    def _watch(self, batch: Any) -> None:
        """Have rows that end in a step stored before the batch drops them. Its caches hold their
        answers, also the last token, which no client has received yet."""
        if type(batch) is not GenerationBatch or "filter" in vars(batch):
            return
        requests, alive = weakref.ref(self), weakref.ref(batch)

        def filter(keep: Sequence[int]) -> None:
            live: Any = alive()
            followed = requests()
            if followed is not None and followed._stepping:
                followed._tried(followed._keep_ended, live, keep)
            GenerationBatch.filter(live, keep)

        batch.filter = filter

    def _keep_ended(self, batch: Any, keep: Sequence[int]) -> None:
        said = batch._current_tokens.tolist()
        for row in set(range(len(batch.uids))) - set(keep):
            self._keep(batch, row, said[row])

    def _keep(self, batch: Any, row: int, *said: int) -> None:
        request = self._under_way.get(batch.uids[row])
        if request is not None and type(batch) is GenerationBatch:
            self._commit(batch, row, [*request.prompt, *request.answer, *said], request.extra_hash)

    def _keep_begun(self, batch: Any, uid: int) -> None:
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
            self._commit(batch, row, meta["full_input_ids"][:computed], meta["extra_hash"])

    def _commit(self, batch: Any, row: int, tokens: list[int], extra_hash: int) -> None:
        self._apc.commit(batch.prompt_cache, tokens, batch_idx=row, extra_hash=extra_hash)
