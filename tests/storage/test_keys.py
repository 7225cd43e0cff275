"""No two different inputs encode alike, and a chain grown piece by piece is the same chain."""

import hashlib
import json
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage import keys
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens, namespace_digest

TOKENS = st.integers(-(2**60), 2**63 - 1)
SEQUENCES = st.lists(TOKENS, max_size=40)
TEXT = st.text(st.characters(codec=None), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
DOCUMENTS = st.dictionaries(TEXT, VALUES, max_size=4)
NAMESPACE = namespace_digest({"model": "a"})


def _typed(value: object) -> object:
    """Return a form in which values are equal only when a document tells them apart: 1 is not
    True, and not 1.0."""
    if isinstance(value, dict):
        return {key: _typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    return (type(value).__name__, repr(value))


@given(DOCUMENTS, DOCUMENTS)
def test_different_documents_have_different_digests(a: Any, b: Any) -> None:
    assert (namespace_digest(a) == namespace_digest(b)) == (_typed(a) == _typed(b))


@given(DOCUMENTS, st.randoms())
def test_the_order_of_fields_does_not_count(document: dict[str, object], random: Any) -> None:
    items = list(document.items())
    random.shuffle(items)
    assert namespace_digest(dict(items)) == namespace_digest(document)


def test_a_surrogate_pair_is_not_the_character_that_it_spells() -> None:
    assert namespace_digest({"salt": "\U0001f600"}) != namespace_digest({"salt": "\ud83d\ude00"})


@pytest.mark.parametrize(
    "document",
    [{1: "a"}, {None: "a"}, {"a": {1: 2}}, {"a": [{True: 1}]}, {"a": (1, 2)}, {"a": b"x"}],
)
def test_documents_that_json_would_write_like_others_are_refused(document: Any) -> None:
    with pytest.raises(TypeError):
        namespace_digest(document)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_cannot_write_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        namespace_digest({"a": value})


def test_a_namespace_can_never_be_taken_for_a_block() -> None:
    """The digest's input begins with a tag: as a block's it would need a parent of that text."""
    document = {"model": "a"}
    text = json.dumps(document, separators=(",", ":")).encode()
    assert namespace_digest(document) == hashlib.sha256(keys._NAMESPACE_TAG + text).digest()
    assert namespace_digest(document) != hashlib.sha256(text).digest()


class _Recording:
    """Stands in for the digest: keeps every input, and gives each a distinct key of 32 bytes."""

    def __init__(self) -> None:
        self.inputs: list[bytes] = []

    def __call__(self, parent: bytes, tokens: bytes) -> bytes:
        self.inputs.append(parent + tokens)
        return hashlib.sha256(parent + tokens).digest()


@given(SEQUENCES, SEQUENCES, st.sampled_from([1, 2, 3, 8]))
def test_different_prefixes_are_encoded_differently(a: list[int], b: list[int], size: int) -> None:
    """The whole chain of inputs is compared, not only digests: it holds for any sound hash."""
    known: dict[tuple[bytes, ...], list[int]] = {}
    for tokens in (a, b):
        for position in range(1, len(tokens) + 1):
            chain = KeyChain(NAMESPACE, as_tokens(tokens), size)
            with patch.object(keys, "_digest", _Recording()) as recording:
                chain.key(position)
            prefix = tokens[:position]
            assert known.setdefault(tuple(recording.inputs), prefix) == prefix


@given(SEQUENCES.filter(bool), st.sampled_from([1, 2, 5]))
def test_an_input_is_a_parent_of_32_bytes_and_8_bytes_a_token(tokens: list[int], size: int) -> None:
    chain = KeyChain(NAMESPACE, as_tokens(tokens), size)
    with patch.object(keys, "_digest", _Recording()) as recording:
        chain.key(len(tokens))
    decoded: list[int] = []
    for data in recording.inputs:
        assert (len(data) - 32) % 8 == 0
        decoded += np.frombuffer(data[32:], dtype="<i8").tolist()
    assert decoded == tokens
    assert recording.inputs[0][:32] == NAMESPACE


def test_a_key_of_sha256_is_the_digest_of_parent_and_tokens() -> None:
    chain = KeyChain(NAMESPACE, as_tokens([1, -2, 3]), 2)
    first = hashlib.sha256(NAMESPACE + np.array([1, -2], "<i8").tobytes()).digest()
    assert chain.key(2) == first
    assert chain.key(3) == hashlib.sha256(first + np.array([3], "<i8").tobytes()).digest()
    assert (chain.parent(2), chain.parent(3)) == (NAMESPACE, first)


@given(st.lists(SEQUENCES, min_size=1, max_size=6))
def test_an_extended_chain_equals_a_fresh_one(parts: list[list[int]]) -> None:
    grown = KeyChain(NAMESPACE, as_tokens(parts[0]), 4)
    for part in parts[1:]:
        if len(grown):
            grown.key(len(grown))
        grown.extend(as_tokens(part))
    whole = [token for part in parts for token in part]
    fresh = KeyChain(NAMESPACE, as_tokens(whole), 4)
    assert grown.tokens.tolist() == whole
    assert len(grown) == len(whole)
    for position in range(1, len(whole) + 1):
        assert grown.key(position) == fresh.key(position)
        assert grown.parent(position) == fresh.parent(position)


@given(SEQUENCES, SEQUENCES, SEQUENCES, st.sampled_from([1, 2, 3, 8]), st.booleans())
def test_a_chain_takes_the_keys_of_what_it_shares_and_no_others(
    shared: list[int], one: list[int], other: list[int], size: int, is_hashed: bool
) -> None:
    known = KeyChain(NAMESPACE, as_tokens(shared), size)
    known.extend(as_tokens(one))
    if is_hashed and len(known):
        known.key(len(known))
    tokens = as_tokens([*shared, *other])
    chain, fresh = KeyChain(NAMESPACE, tokens, size, known), KeyChain(NAMESPACE, tokens, size)
    for position in range(1, len(tokens) + 1):
        assert chain.key(position) == fresh.key(position)


def test_extending_leaves_the_given_tokens_alone() -> None:
    tokens = as_tokens([1, 2, 3])
    chain = KeyChain(NAMESPACE, tokens, 2)
    seen = chain.tokens
    chain.extend(as_tokens([4]))
    assert (tokens.tolist(), seen.tolist()) == ([1, 2, 3], [1, 2, 3])


@pytest.mark.parametrize(
    "tokens",
    [
        [1.0],
        [2**63],
        [2**63, -1],
        [-(2**63) - 1],
        [2**64],
        ["1"],
        [None],
        [[1, 2]],
        [1, [2]],
        7,
        np.array([1.5]),
        np.array([True]),
        np.array([2**63], dtype=np.uint64),
        np.zeros((2, 2), dtype=np.int64),
    ],
)
def test_what_is_not_a_flat_sequence_of_int64_is_refused(tokens: Any) -> None:
    with pytest.raises(ValueError, match=r"tokens|token ids|inhomogeneous"):
        as_tokens(tokens)


@pytest.mark.parametrize("dtype", ["i1", "i2", "<i4", ">i8", "u1", "u4", "u8"])
def test_integer_arrays_of_any_width_are_the_same_tokens(dtype: str) -> None:
    given_array = np.array([1, 2, 100], dtype=dtype)
    tokens = as_tokens(given_array)
    assert tokens.tobytes() == as_tokens([1, 2, 100]).tobytes()
    given_array[0] = 9
    assert tokens[0] == 1


def test_two_threads_that_ask_for_one_key_do_not_shift_those_behind_it() -> None:
    namespace = namespace_digest({"model": "two threads"})
    tokens = as_tokens(range(64))
    chain, alone = (KeyChain(namespace, tokens, 16) for _ in range(2))
    digest = keys._digest

    def interrupted(parent: bytes, block: bytes) -> BlockKey:
        with patch.object(keys, "_digest", digest):
            chain.key(16)
        return digest(parent, block)

    with patch.object(keys, "_digest", interrupted):
        chain.key(16)
    assert [chain.key(end) for end in (16, 32, 48, 64)] == [
        alone.key(end) for end in (16, 32, 48, 64)
    ]
