"""The text under which a codec's pages are kept: canonical, of this build, or refused."""

from random import Random

from omlx_cache.codecs import codec_named

from .mutate import NUMBERS, spoil_text
from .pages import AFFINE
from .target import MIB, Target, refused


def one(data: bytes) -> bool:
    text = data.decode("utf-8", "surrogateescape")
    try:
        codec = codec_named(text)
    except ValueError as error:
        return refused(error)
    assert codec.identity == text
    return True


def vary(rng: Random, sample: bytes) -> bytes:
    text = sample.decode()
    if rng.random() < 0.3:
        values = (*NUMBERS, 64, 128, 4, 3, 17, 2048, 2047, "x")
        name = rng.choice(("affine", "turbo-mse", "dense", "other"))
        keys = rng.sample(("bits", "dim", "group", "norm", "rotation", "seed"), rng.randrange(7))
        # Few of them are costly: tables for many channels are made before they are compared.
        pairs = ",".join(f"{key}={rng.choice(values)}" for key in sorted(keys))
        return f"{name}/{rng.choice((1, 1, 2, 0))}({pairs})".encode()
    return spoil_text(rng, text).encode("utf-8", "surrogatepass")


def samples() -> list[bytes]:
    turbo = (f"turbo-mse/1(bits={bits},dim=64,norm=corrected,rotation=hadamard,seed=0)#codebook="
             f"{'0' * 16},signs={'0' * 16}" for bits in (2, 4))  # fmt: skip
    return [text.encode() for text in ("dense/1", AFFINE, *turbo)]


TARGET = Target("identity", samples, vary, one, constant=64 * MIB, seconds=20.0)
