"""Only new text is tokenised: the tokens of a chat's pieces are kept.

A piece begins with a special token. Tokenizers cut such tokens out of a text before they do
anything else, so a piece has the same tokens alone as in the text. That holds only for a special
token which is matched in the text as it is, and which no other added token can overlap.
"""

import inspect
import logging
import math
import re
import sys
import threading
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from omlx_cache_storage.keys import Tokens, as_tokens

_log = logging.getLogger(__name__)

NBYTES = 16 << 20
"""Memory for pieces and their tokens."""
PIECE_BYTES = 256
"""What a piece takes beside them, about."""
SYSTEM_SECONDS = 60.0
"""A conversation's rendered beginning is kept so long: a template may write the date."""
CHECK_EVERY = 100
"""Of so many prompts one is compared with the tokens of the whole."""

_RENDERING = {"self", "conversation", "tools", "documents", "chat_template", "kwargs"} | {
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
}
_ENCODING = (
    inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters.keys() - _RENDERING
)
"""What `apply_chat_template` takes to change how a chat is tokenised: that is left to it."""
_METHODS = (
    "__call__",
    "_convert_encoding",
    "_encode_plus",
    "_switch_to_input_mode",
    "apply_chat_template",
    "encode",
    "set_truncation_and_padding",
)
"""What a tokenizer may not have of its own: alone, pieces may be tokenised otherwise."""


_UNEQUAL: set[str] = set()
"""Tokenizers, by name, whose pieces differed once: another model may be loaded meanwhile, and they
again."""


class PackedTokens(list[int]):
    """A prompt's tokens, which nobody changes, and the same ones `packed`, 32 bits each: of a list
    of 128,000 NumPy takes them in four milliseconds, each time."""

    __slots__ = ("packed",)

    def __init__(self, packed: "array[int]") -> None:
        super().__init__(packed.tolist())
        self.packed = packed

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.packed, dtype=dtype, copy=copy)

    def as_tokens(self, tokens: Sequence[int]) -> Tokens:
        """Return what `keys.as_tokens` does, sooner for what shares this prompt's beginning."""
        shared = min(len(self), len(tokens))
        if self[:shared] != tokens[:shared]:
            return as_tokens(tokens)
        return np.concatenate([as_tokens(self.packed[:shared]), as_tokens(tokens[shared:])])


@lru_cache(maxsize=1)
def cached(tokenizer: Any) -> "CachedTokenizer":
    """Return the stand-in for mlx-lm's tokenizer, the same one while the model is the same."""
    return CachedTokenizer(tokenizer)


class CachedTokenizer:
    """Stands in for mlx-lm's tokenizer, for prompts: with the same tokens, sooner.

    Any thread may use it. `_lock` guards `_pieces`, the tokens of texts, the least recently used
    first, `_nbytes`, their size, `_prompts`, a count, and `_unchecked`, a prompt and its tokens.
    `_system` is replaced: the time, arguments and tokens of a conversation's beginning, which
    mlx-lm renders at each request. `_starts` matches where pieces begin; it is None when all is
    left to the tokenizer, from the beginning or after a difference.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._wrapped = tokenizer
        self._inner: Any = getattr(tokenizer, "_tokenizer", None)
        self._starts = None if self._name in _UNEQUAL else _starts(self._inner)
        self._lock = threading.Lock()
        self._pieces: OrderedDict[str, array[int]] = OrderedDict()
        self._nbytes = 0
        self._prompts = 0
        self._unchecked: tuple[str, array[int]] | None = None
        self._system: tuple[float, Any, PackedTokens | None] = (-math.inf, None, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    @property
    def _name(self) -> str:
        return str(getattr(self._inner, "name_or_path", ""))

    def apply_chat_template(self, *args: Any, tokenize: bool = True, **options: Any) -> Any:
        starts, is_prompt = self._starts, options.get("add_generation_prompt")
        if tokenize and starts is not None and not _ENCODING & options.keys():
            known, now = self._system, time.monotonic()
            if not is_prompt and known[1] == (args, options) and now - known[0] < SYSTEM_SECONDS:
                return known[2]
            text = self._wrapped.apply_chat_template(*args, tokenize=False, **options)
            if isinstance(text, str):
                cuts = [0, *(found.start() for found in starts.finditer(text)), len(text)]
                pieces = [text[a:b] for a, b in pairwise(cuts) if a < b]
                tokens = self._encoded(pieces)
                packed = PackedTokens(tokens)
                if is_prompt:
                    self._note(text, tokens)
                else:
                    self._system = now, (args, options), packed
                return packed
        return self._wrapped.apply_chat_template(*args, tokenize=tokenize, **options)

    def rfind_think_start(
        self, tokens: list[int], start: int | None = None, end: int | None = None
    ) -> int:
        return _rfind(tokens, self._wrapped.think_start_tokens, start, end)

    def rfind_think_end(
        self, tokens: list[int], start: int | None = None, end: int | None = None
    ) -> int:
        return _rfind(tokens, self._wrapped.think_end_tokens, start, end)

    def check(self) -> bool:
        """Compare a prompt, if one is due, with the tokenizer's tokens, as long as it takes to
        tokenise it; False after a difference, when the cache is used no more."""
        with self._lock:
            due, self._unchecked = self._unchecked, None
        if due is not None and due[1].tolist() != self._inner.encode(
            due[0], add_special_tokens=False
        ):
            self._starts = None
            _UNEQUAL.add(self._name)
            _log.error(
                "cached pieces of a prompt of %d tokens differ from the prompt: each prompt is "
                "tokenised as a whole from now on",
                len(due[1]),
            )
            return False
        return True

    def _encoded(self, pieces: Sequence[str]) -> "array[int]":
        with self._lock:
            # The latest used come last.
            known = {piece: self._pieces.pop(piece) for piece in pieces if piece in self._pieces}
            self._pieces.update(known)
        missing = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        if missing:
            encoded = self._inner(missing, add_special_tokens=False)["input_ids"]
            known.update(zip(missing, (array("i", ids) for ids in encoded), strict=True))
            self._keep({piece: known[piece] for piece in missing})
        tokens = array("i")
        for piece in pieces:
            tokens += known[piece]
        return tokens

    def _note(self, text: str, tokens: "array[int]") -> None:
        with self._lock:
            if self._prompts % CHECK_EVERY == 0:
                self._unchecked = text, tokens
            self._prompts += 1

    def _keep(self, encoded: "dict[str, array[int]]") -> None:
        with self._lock:
            for piece, tokens in encoded.items():
                if piece not in self._pieces:
                    self._pieces[piece] = tokens
                    self._nbytes += _nbytes(piece, tokens)
            while self._nbytes > NBYTES:
                self._nbytes -= _nbytes(*self._pieces.popitem(last=False))


def _nbytes(piece: str, tokens: "array[int]") -> int:
    return sys.getsizeof(piece) + tokens.itemsize * len(tokens) + PIECE_BYTES


def _rfind(tokens: list[int], wanted: Sequence[int], start: int | None, end: int | None) -> int:
    """Return where a sequence begins for the last time, -1 without it. mlx-lm looks at each token
    in Python."""
    packed = tokens.packed if isinstance(tokens, PackedTokens) else array("i", tokens)
    size = packed.itemsize
    searched, pattern = packed.tobytes(), array("i", wanted).tobytes()
    first, stop = max(start or 0, 0) * size, (end or len(packed)) * size
    while (found := searched.rfind(pattern, first, stop)) % size and found > 0:
        # Bytes of two tokens that look like another one.
        stop = found + len(pattern) - 1
    return found // size


def _starts(tokenizer: Any) -> re.Pattern[str] | None:
    """Return what matches the special tokens that a piece can begin with, None without any, and
    where it is unknown that the tokenizer looks at each piece alone."""
    try:
        if not _is_known(tokenizer):
            return None
        added = [one for one in tokenizer.added_tokens_decoder.values() if not one.normalized]
        if any(one.single_word for one in added):
            return None
        texts = {one.content for one in added}
        ends = {text[at:] for text in texts for at in range(1, len(text))}
        # The last one is behind all of them.
        parts = sorted(texts | ends | {chr(sys.maxunicode)})
        alone = {
            one.content
            for one in added
            if one.special
            and not (one.lstrip or one.content[0].isspace())
            and not any(one.content[:at] in ends for at in range(1, len(one.content) + 1))
            and not parts[bisect_right(parts, one.content)].startswith(one.content)
        }
        return re.compile(_any_of(sorted(alone))) if alone else None
    except Exception:
        _log.debug("prompts are tokenised as a whole", exc_info=True)
        return None


def _is_known(tokenizer: Any) -> bool:
    """True for a tokenizer of transformers, in Rust, with nothing of its own that tokenises and
    nothing random. Raises for parts in Python: they cannot be serialised."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.split_special_tokens:
        return False
    for name in _METHODS:
        method = getattr(tokenizer, name, None)
        if getattr(method, "__func__", None) is not getattr(PreTrainedTokenizerFast, name, None):
            return False
    backend = tokenizer.backend_tokenizer
    for part in (backend.normalizer, backend.pre_tokenizer):
        if part is not None:
            part.__getstate__()
    samples = (getattr(backend.model, name, None) for name in ("dropout", "alpha", "nbest_size"))
    return not any(samples)


def _any_of(texts: Sequence[str]) -> str:
    """Return a pattern for sorted texts, none of which begins another. A common beginning is in it
    once, since some tokenizers have thousands of special tokens."""
    if len(texts) == 1:
        return re.escape(texts[0])
    parts = [
        re.escape(first) + _any_of([text[1:] for text in group])
        for first, group in groupby(texts, key=lambda text: text[0])
    ]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
