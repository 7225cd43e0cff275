"""Prompts have the tokens that the tokenizer makes of them, whatever of them is cached."""

import weakref
from array import array
from functools import cache, partial
from itertools import product
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from omlx_cache.integrations.mlx_lm import tokenizer_cache
from omlx_cache.integrations.mlx_lm.responses import Responses
from omlx_cache.integrations.mlx_lm.tokenizer_cache import CachedTokenizer, PackedTokens, cached
from omlx_cache_storage.keys import as_tokens
from omlx_cache_storage.measures import Counters

TEXT = "a user, the system; caffè ﬁne e\u0301 中文 im_start  foo\n\n bar\tBAZ 123 <b>x</b> ▁_ "


def bpe(**options: Any) -> Any:
    return models.BPE(unk_token="?", **options), trainers.BpeTrainer


def word_piece() -> Any:
    return models.WordPiece(unk_token="?"), trainers.WordPieceTrainer


def unigram() -> Any:
    return models.Unigram(), partial(trainers.UnigramTrainer, unk_token="?")


PIPELINES = {
    "bytes": (bpe, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "bytes, prefix": (bpe, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "bytes, no merges": (
        lambda: bpe(ignore_merges=True),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False, use_regex=False)]
        ),
    ),
    "fallback, always": (
        lambda: bpe(byte_fallback=True, fuse_unk=True),
        pre_tokenizers.Metaspace(prepend_scheme="always"),
    ),
    "first": (bpe, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "never": (bpe, pre_tokenizers.Metaspace(prepend_scheme="never", split=False)),
    "whole": (bpe, None),
    "word pieces": (word_piece, pre_tokenizers.BertPreTokenizer()),
    "unigram": (unigram, pre_tokenizers.Metaspace(prepend_scheme="first")),
}
NORMALIZERS = {
    "as it is": None,
    "NFC": normalizers.NFC(),
    "NFKC, lower": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    "prepended": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    "stripped": normalizers.Sequence([normalizers.Strip(), normalizers.Replace("a", "b")]),
}
START = AddedToken("<|im_start|>", special=True, normalized=False)
ADDED = {
    "plain": [],
    "right": [AddedToken("<|r|>", special=True, normalized=False, rstrip=True)],
    "left": [AddedToken("<|l|>", special=True, normalized=False, lstrip=True)],
    "word": [AddedToken("foo", special=True, normalized=False, single_word=True)],
    "normalized": [
        AddedToken("<|n|>", special=True, normalized=True),
        AddedToken("<b>", special=False, normalized=True, lstrip=True, rstrip=True),
    ],
    "overlapping": [
        AddedToken(text, special=special, normalized=False)
        for text, special in (
            ("<|im", True),
            ("x<|im_st", False),
            ("|><|", True),
            ("im_start", True),
            ("art|>user", False),
        )
    ],
    "space": [
        AddedToken(text, special=special, normalized=False, rstrip=strips)
        for text, special, strips in (
            ("\n\n", False, False),
            ("  ", True, True),
            (" <|s|>", True, True),
        )
    ],
}
FRAGMENTS = [
    *("<|im_start|>", "<|im_end|>", "<|", "|>", "<|im", "x<|im_st", "im_start", "art|>user"),
    *("<|r|>", "<|l|>", "<|n|>", "<N>", "<b>", "foo", " ", "  ", "\n", "\n\n", "\t", "\u0301"),
    *("e", "é", "user\n", "the system", "▁", "中文", "123", "\U0001f600", "<|s|>", " <|s|>"),
]


@cache
def made(pipeline: str, normalizer: str, added: str) -> Any:
    """Return a tokenizer as mlx-lm wraps it, whose template writes a message as it is."""
    make, pre_tokenizer = PIPELINES[pipeline]
    model, trainer = make()
    inner = Tokenizer(model)
    if pre_tokenizer is not None:
        inner.pre_tokenizer = pre_tokenizer
    if NORMALIZERS[normalizer] is not None:
        inner.normalizer = NORMALIZERS[normalizer]
    inner.train_from_iterator(
        [TEXT] * 3, trainer(vocab_size=200, special_tokens=["?"], show_progress=False)
    )
    inner.add_special_tokens(
        [
            START,
            AddedToken("<|im_end|>", special=True, normalized=False),
            *(one for one in ADDED[added] if one.special),
        ]
    )
    inner.add_tokens([one for one in ADDED[added] if not one.special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    tokenizer.chat_template = "{{ messages[0].content }}"
    return TokenizerWrapper(tokenizer)


def tokens_of(tokenizer: Any, text: str, **options: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, **options
    )


@pytest.mark.parametrize(("pipeline", "normalizer"), list(product(PIPELINES, NORMALIZERS)))
@settings(max_examples=50)
@given(st.sampled_from(list(ADDED)), st.lists(st.sampled_from(FRAGMENTS)), st.data())
def test_tokens_are_the_tokenizers(
    pipeline: str, normalizer: str, added: str, fragments: list[str], data: st.DataObject
) -> None:
    tokenizer = made(pipeline, normalizer, added)
    text, stand_in = "".join(fragments), cached(tokenizer)
    at = data.draw(st.integers(0, len(text)))
    for edited in (text, text, text[at:], text[:at], text + text[at:]):
        assert tokens_of(stand_in, edited) == tokens_of(tokenizer, edited)
        assert stand_in.check()


@pytest.mark.parametrize(
    ("added", "starting"),
    [
        ("plain", ["<|im_start|>", "<|im_end|>"]),
        ("right", ["<|r|>", "<|im_start|>"]),
        ("left", ["<|im_start|>"]),
        ("normalized", ["<|im_start|>"]),
        ("overlapping", ["<|im_end|>"]),
        ("space", ["<|im_start|>"]),
    ],
)
def test_pieces_begin_where_nothing_overlaps(added: str, starting: list[str]) -> None:
    starts = CachedTokenizer(made("bytes", "as it is", added))._starts
    assert starts is not None
    found = {one.content for one in [START, *ADDED[added]] if starts.fullmatch(one.content)}
    assert found | {"<|im_end|>"} == {"<|im_end|>", *starting}


def test_what_is_not_known_is_tokenised_as_a_whole() -> None:
    class Overridden(PreTrainedTokenizerFast):
        def encode(self, text: Any, *args: Any, **options: Any) -> list[int]:
            return [0, *super().encode(text, *args, **options)]

    class Custom:
        def pre_tokenize(self, text: Any) -> None:
            text.split(lambda _, part: [part])

    inner = made("bytes", "as it is", "plain")._tokenizer.backend_tokenizer
    random, custom, unsplit = (PreTrainedTokenizerFast(tokenizer_object=inner) for _ in range(3))
    random.backend_tokenizer.model.dropout = 0.5
    custom.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Custom())
    unsplit.split_special_tokens = True
    overridden = Overridden(tokenizer_object=inner)
    known = TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=inner))
    assert CachedTokenizer(known)._starts is not None
    for tokenizer in (random, custom, unsplit, overridden):
        assert CachedTokenizer(TokenizerWrapper(tokenizer))._starts is None
    for other in (object(), made("bytes", "as it is", "word")):
        assert CachedTokenizer(other)._starts is None


def test_options_of_the_tokenizer_are_its_own() -> None:
    tokenizer = made("bytes", "as it is", "plain")
    text = "<|im_start|>user\n" * 4
    for options in (
        {"truncation": True, "max_length": 3},
        {"tokenizer_kwargs": {"split_special_tokens": True}},
    ):
        expected = tokens_of(tokenizer, text, **options)
        assert tokens_of(cached(tokenizer), text, **options) == expected


def test_a_difference_ends_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_cache, "CHECK_EVERY", 1)
    monkeypatch.setattr(tokenizer_cache, "_UNEQUAL", set())
    stand_in = CachedTokenizer(made("bytes", "as it is", "plain"))
    tokens_of(stand_in, "<|im_start|>user")
    assert stand_in.check()
    for tokens in stand_in._pieces.values():
        tokens[-1] += 1
    tokens_of(stand_in, "<|im_start|>user")
    assert not stand_in.check()
    expected = tokens_of(stand_in._wrapped, "<|im_start|>user")
    assert tokens_of(stand_in, "<|im_start|>user") == expected
    # The model is loaded again, after another one.
    assert CachedTokenizer(stand_in._wrapped)._starts is None


def test_a_difference_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    responses = Responses.__new__(Responses)
    responses.model_provider = SimpleNamespace(tokenizer=None)
    responses._store = SimpleNamespace(counters=Counters())
    responses._at_work, responses.cutting = weakref.WeakKeyDictionary(), False
    responses.coming = set()
    responses.requests = Queue()
    monkeypatch.setattr(CachedTokenizer, "check", lambda self: False)
    responses.check_tokenizer()
    assert responses._store.counters.requests().tokenizer_differences == 0
    responses.model_provider.tokenizer = made("bytes", "as it is", "plain")
    responses.check_tokenizer()
    assert responses._store.counters.requests().tokenizer_differences == 1


def test_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_cache, "NBYTES", 2000)
    stand_in = CachedTokenizer(made("bytes", "as it is", "plain"))
    for number in range(100):
        tokens_of(stand_in, "<|im_start|>kept" + f"<|im_start|>{number}")
        assert stand_in._nbytes <= 2000
    assert {"<|im_start|>kept", "<|im_start|>99"} <= stand_in._pieces.keys()
    tokens_of(stand_in, "a" * 3000)
    assert not stand_in._pieces
    assert stand_in._nbytes == 0


def test_the_system_part_is_rendered_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[Any] = []
    tokenizer = made("bytes", "as it is", "plain")
    stand_in, now = CachedTokenizer(tokenizer), 0.0
    render = TokenizerWrapper.apply_chat_template
    monkeypatch.setattr(
        TokenizerWrapper,
        "apply_chat_template",
        lambda *args, **options: (rendered.append(options), render(*args, **options))[1],
    )
    monkeypatch.setattr(tokenizer_cache, "time", SimpleNamespace(monotonic=lambda: now))

    def system(text: str, **options: Any) -> Any:
        messages = [{"role": "system", "content": text}, {"role": "user", "content": ""}]
        return stand_in.apply_chat_template(messages, add_generation_prompt=False, **options)

    expected = tokenizer.apply_chat_template([{"content": "the system"}], tokenize=True)
    for count, (at, text, tools) in enumerate(
        [
            (0, "the system", None),
            (70, "the system", None),
            (70, "x", None),
            (70, "x", [{"type": "function"}]),
        ],
        2,
    ):
        now = at
        told = [system(text, tools=tools, tokenize=True) for _ in range(3)]
        assert told[0] == told[2]
        assert (told[0] == expected) is (text != "x")
        assert len(rendered) == count
    # A prompt is always rendered, and so is what is no prompt for somebody else.
    for _ in range(2):
        tokens_of(stand_in, "the system")
        system("x", tokenize=False)
    assert len(rendered) == count + 4


NUMBERS = st.sampled_from([0, 1, 256, 1 << 24])


@given(st.lists(NUMBERS), st.lists(NUMBERS, min_size=1, max_size=3), st.data())
def test_a_sequence_is_found_as_by_the_tokenizer(
    tokens: list[int], wanted: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.none() | st.integers(-3, len(tokens)))
    end = data.draw(st.none() | st.integers(0, len(tokens)))
    expected = TokenizerWrapper._find(tokens, wanted, start=start, end=end, reverse=True)
    for searched in (tokens, PackedTokens(array("i", tokens))):
        assert tokenizer_cache._rfind(searched, wanted, start, end) == expected


def test_numpy_takes_a_prompt_as_it_is() -> None:
    prompt = PackedTokens(array("i", [1, 128_000]))
    assert prompt == [1, 128_000]
    assert as_tokens(prompt).tolist() == prompt
    assert type(prompt[:1]) is list


@given(st.lists(NUMBERS), st.lists(NUMBERS), st.data())
def test_tokens_of_a_prompt_are_those_of_the_list(
    prompt: list[int], others: list[int], data: st.DataObject
) -> None:
    shared = prompt[: data.draw(st.integers(0, len(prompt)))]
    for tokens in ([*shared, *others], others):
        found = PackedTokens(array("i", prompt)).as_tokens(tokens)
        assert found.dtype == as_tokens([1]).dtype
        assert found.tolist() == tokens
