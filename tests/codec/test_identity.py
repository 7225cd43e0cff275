import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_cache.codecs import turbo_tables
from omlx_cache.codecs.policy import codec_named
from omlx_cache.codecs.turbo import TurboCodec


@given(st.text(max_size=40))
def test_any_text_is_the_identity_of_its_codec_or_a_value_error(text: str) -> None:
    try:
        codec = codec_named(text)
    except ValueError:
        return
    assert codec.identity == text


def test_identity_of_turboquant_names_everything_that_decoding_depends_on() -> None:
    assert TurboCodec(128, 4).identity == (
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
    assert len({codec.identity for codec in codecs}) == len(codecs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dense",
        "dense/0",
        "Dense/1",
        "dense/1()",
        "affine/1(group=64,bits=8)",
        "affine/1(bits=8,bits=8,group=64)",
        "affine/1(bits)",
        "affine/1(bits=8,group=64)#",
        "affine/1(bits=8,group=64) ",
        "affine/1(bits=08,group=64)",
        "x" * 2000,
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
        codec_named(text)


def test_no_tables_are_made_for_an_identity_that_names_none() -> None:
    made = turbo_tables.rotation.cache_info().misses
    text = "turbo-mse/1(bits=8,dim=2047,norm=plain,rotation=dense,seed=7)"
    with pytest.raises(ValueError, match="two tables"):
        codec_named(text)
    assert turbo_tables.rotation.cache_info().misses == made
