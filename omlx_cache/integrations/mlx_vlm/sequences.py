"""One loaded model's sequences in a store: found, restored and stored in the classes of mlx-vlm."""

import logging
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from omlx_cache import reasons
from omlx_cache.identity.fingerprint import fingerprint_model
from omlx_cache.identity.parts import version_of
from omlx_cache.integrations.mlx_vlm.form import CACHES, KvForm
from omlx_cache.integrations.mlx_vlm.marks import marked
from omlx_cache.integrations.siblings import SiblingIndex, StoredPrefix, find_along
from omlx_cache.requests.log import AskedRequest
from omlx_cache.scope import Scope, Scopes
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import Tokens

_log = logging.getLogger(__name__)

ROOM_TOKENS = 256


class Warm(NamedTuple):
    """A prefix that was restored: private caches of one sequence, and its length."""

    caches: list[Any]
    tokens: int


class LookedUp(NamedTuple):
    """What came of a look-up: a prefix, None for none; where a restore point was missed; and the
    request's record."""

    warm: Warm | None
    missed: int | None
    asked: AskedRequest


class _Lane(NamedTuple):
    scope: Scope
    siblings: SiblingIndex


class Sequences:
    """A language model's sequences, dense and packed. No method raises for what the cache, the disk
    or an unsupported model does. Use it on the thread that runs the model.

    `whole` is the model around the language model: its other weights made the embeddings of images
    and sound. When it is not known, prompts with a hash other than 0 are kept for this object only.
    """

    def __init__(
        self,
        language_model: Any,
        store: BlockStore,
        form: KvForm,
        *,
        whole: Any = None,
        model_id: str | None = None,
    ) -> None:
        self.form = form
        self._store = store
        self._model = alive = weakref.ref(language_model)
        self._nonce = b"" if whole is not None else secrets.token_bytes(16)
        # Another version of its models may compute other bits, as another mlx-lm may.
        self._extra = {"mlx-vlm": version_of("mlx-vlm")}
        if whole is not None:
            self._extra["whole"] = fingerprint_model(whole)

        def fresh() -> list[Any]:
            return list(import_module(CACHES).make_prompt_cache(alive()))

        scopes = Scopes(language_model, store, model_id=model_id, make_cache=fresh)
        self._dense = self._lane(scopes)
        self._packed = self._dense
        if form.policy is not None:
            self._packed = self._lane(scopes.with_caches(lambda: form.packed(fresh())))

    def _lane(self, scopes: Scopes) -> _Lane:
        return _Lane(scopes.scope(extra=self._extra), SiblingIndex())

    def of(self, language_model: Any, form: KvForm) -> bool:
        """True when these are the sequences of that model, in that form."""
        return self._model() is language_model and self.form == form

    @property
    def unsupported_reason(self) -> str | None:
        if self.form.refused:
            return f"{reasons.UNSUPPORTED}:{self.form.refused}"
        return self._packed.scope.unsupported_reason

    @property
    def stateful(self) -> bool:
        """True for a model whose prefixes can be restored only where they were kept."""
        return self.unsupported_reason is None and not self._packed.scope.trims

    def fresh(self) -> list[Any]:
        """Return empty dense caches of one sequence."""
        return self._dense.scope.fresh()

    def warm(
        self, tokens: Sequence[int], extra_hash: int, useful: Callable[[int], bool]
    ) -> LookedUp:
        """Restore as much of a prompt as there is and is `useful`, which is asked of its length.
        Counts the request."""
        lane = self._for(len(tokens))
        asked = lane.scope.ask(len(tokens))
        began = time.perf_counter()
        restored: Warm | None = None
        wanted, cold, reason = None, 0, self.unsupported_reason
        try:
            if len(tokens) < 2:
                reason = reasons.TOO_SHORT
            elif reason is None:
                restored, wanted, cold, reason = self._restore(
                    lane, marked(tokens, extra_hash, self._nonce), asked, useful
                )
        except Exception as error:
            _log.exception("the prompt cache is passed by")
            reason = f"{reasons.ERROR}:{type(error).__name__}"
        count = 0 if restored is None else restored.tokens
        asked.restored(count, cold, time.perf_counter() - began, reason)
        return LookedUp(restored, wanted, asked)

    def _restore(
        self, lane: _Lane, tokens: Tokens, asked: AskedRequest, useful: Callable[[int], bool]
    ) -> tuple[Warm | None, int | None, int, str | None]:
        found = find_along(lane.scope, lane.siblings, tokens, len(tokens) - 1)
        asked.walked = found.walked
        if not found.position or not useful(found.position):
            return None, self._missed(lane, found), 0, found.reason or reasons.NO_RESTORE_POINT
        restored = lane.scope.restore(found.chain, found.position, len(tokens) + ROOM_TOKENS)
        point = restored.point
        reason = found.reason if point.position == found.position else point.reason
        if not point.position or not useful(point.position):
            return None, point.wanted_state, 0, reason or reasons.NO_RESTORE_POINT
        warm = Warm(restored.prompt_cache, point.position)
        asked.remote_tokens = restored.remote_tokens
        return warm, self._missed(lane, found), restored.cold_tokens, reason

    @staticmethod
    def _missed(lane: _Lane, found: StoredPrefix) -> int | None:
        if lane.scope.trims:
            return None
        chain = found.walked.chain
        return lane.scope.find(chain, len(chain) - 1, wait=0.0).wanted_state

    def stops(self, start: int, length: int, branch: int | None) -> list[int]:
        """Return where windows and state are wanted while a prompt of `length` tokens is computed
        from `start` on; none for models whose prefixes can be cut anywhere."""
        if self.unsupported_reason is not None:
            return []
        return self._for(length).scope.stops(start, length, branch)

    def accepts(self, caches: Sequence[Any]) -> bool:
        """True for caches of one sequence in one of the classes that are kept."""
        return self._accepting(caches) is not None

    def store(self, tokens: Sequence[int], caches: Sequence[Any], extra_hash: int) -> bool:
        """Store a sequence's caches, which hold exactly `tokens`; copies what it keeps."""
        lane = self._accepting(caches)
        counters = self._store.counters
        if lane is None:
            unsupported = self.unsupported_reason is not None
            counters.skip(reasons.UNSUPPORTED if unsupported else reasons.LAYOUT_CHANGED)
            return False
        try:
            chain = lane.scope.chain(marked(tokens, extra_hash, self._nonce))
            result = lane.scope.commit(chain, caches)
            lane.siblings.add(chain, result.tokens)
        except Exception:
            counters.skip(reasons.ERROR)
            _log.exception("a sequence is not stored")
            return False
        return result.tokens > 0

    def _for(self, prompt_length: int) -> _Lane:
        return self._packed if self.form.packs(prompt_length) else self._dense

    def _accepting(self, caches: Sequence[Any]) -> _Lane | None:
        if self.form.refused:
            return None
        lanes = (self._packed, self._dense)
        return next((lane for lane in lanes if lane.scope.accepts(caches)), None)
