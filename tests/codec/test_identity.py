import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omlx_cache.codecs import CodecIdentity, TurboCodec, codec_for, parse_identity, turbo_tables
from omlx_cache.codecs.identity import make_identity

WORDS = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
VALUES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,8}", fullmatch=True)
# Twice 20 pairs of 20 characters: a text that is longer than the limit is refused, rightly.
PAIRS = st.dictionaries(WORDS, VALUES, max_size=20)
MOST = {f"wwwwwww{number:02}": "v" * 9 for number in range(20)}


@example("n" * 9, 9999, dict(MOST), MOST)
@given(WORDS, st.integers(1, 9999), PAIRS, PAIRS)
def test_text_of_an_identity_parses_back_to_it(
    name: str, version: int, parameters: dict[str, object], tables: dict[str, str]
) -> None:
    identity = make_identity(name, version, parameters, tables)
    assert parse_identity(str(identity)) == identity


@given(st.text(max_size=40))
def test_parsing_any_text_gives_its_canonical_identity_or_value_error(text: str) -> None:
    try:
        identity = parse_identity(text)
    except ValueError:
        return
    assert str(identity) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dense",
        "dense/0",
        "dense/01",
        "Dense/1",
        "dense/1()",
        "affine/1(group=64,bits=8)",
        "affine/1(bits=8,bits=8)",
        "affine/1(bits)",
        "affine/1(bits=8)#",
        "affine/1(bits=8) ",
        "affine/1(bits=8+9)",
        "x" * 2000,
    ],
)
def test_text_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"codec"):
        parse_identity(text)


def test_identity_of_turboquant_names_everything_that_decoding_depends_on() -> None:
    assert str(TurboCodec(128, 4).identity) == (
        "turbo-mse/1(bits=4,dim=128,norm=corrected,rotation=hadamard,seed=0)"
        "#codebook=4a7696e7a40bb7e0,signs=61e5422b0a75529e"
    )


def test_every_parameter_of_turboquant_changes_its_identity() -> None:
    codecs = [
        TurboCodec(128, 4),
        TurboCodec(128, 4, seed=1),
        TurboCodec(128, 3),
        TurboCodec(64, 4),
        TurboCodec(96, 4),
        TurboCodec(128, 4, norm="plain"),
    ]
    assert len({str(codec.identity) for codec in codecs}) == len(codecs)


@pytest.mark.parametrize(
    "text",
    [
        "dense/2",
        "dense/1(bits=8)",
        "gguf/1(bits=8)",
        "affine/1(bits=8)",
        "affine/2(bits=8,group=64)",
        "affine/1(bits=7,group=64)",
        "affine/1(bits=eight,group=64)",
        "turbo-mse/1(bits=4,dim=128,norm=corrected,rotation=dense,seed=0)"
        "#codebook=4a7696e7a40bb7e0,signs=61e5422b0a75529e",
        "turbo-mse/1(bits=4,dim=128,norm=corrected,rotation=hadamard,seed=0)"
        "#codebook=0000000000000000,signs=61e5422b0a75529e",
        "turbo-mse/1(bits=4,dim=128,norm=corrected,rotation=hadamard,seed=0)"
        "#codebook=4a7696e7a40bb7e0,signs=0000000000000000",
        "turbo-mse/1(bits=4,dim=99999999,norm=corrected,rotation=dense,seed=0)",
    ],
)
def test_identity_of_another_dialect_table_or_parameter_gets_no_codec(text: str) -> None:
    with pytest.raises(ValueError, match=r"codec|TurboQuant"):
        codec_for(parse_identity(text))


def test_stored_identity_gives_back_an_equal_codec() -> None:
    codec = TurboCodec(80, 3, seed=7, norm="plain")
    assert codec_for(parse_identity(str(codec.identity))) == codec


def test_identity_with_characters_that_would_break_its_text_is_refused() -> None:
    with pytest.raises(ValueError, match="character"):
        CodecIdentity("affine", 1, (("bits", "8)#x=y"),))


def test_no_tables_are_made_for_an_identity_that_names_none() -> None:
    made = turbo_tables.rotation.cache_info().misses
    text = "turbo-mse/1(bits=8,dim=2047,norm=plain,rotation=dense,seed=7)"
    with pytest.raises(ValueError, match="two tables"):
        codec_for(parse_identity(text))
    assert turbo_tables.rotation.cache_info().misses == made
