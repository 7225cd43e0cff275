"""The names of codecs: those that settings and commands accept, and under which bytes are kept.

Equal identities decode alike, others never meet. Imports no MLX.

Canonical text: `name/version(key=value,...)#table=digest,...`; the two lists are sorted and left
out when empty. Example: `turbo-mse/1(bits=4,dim=128)#codebook=4a7696e7a40bb7e0`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

CodecName = Literal["dense", "affine8", "affine4", "k8v4", "turbo4", "turbo3", "turbo2"]

CODEC_NAMES: Final[tuple[CodecName, ...]] = get_args(CodecName)
DEFAULT_MIN_QUANTIZE_TOKENS: Final = 256

HALVES: Final[dict[CodecName, tuple[str, str]]] = {
    "dense": ("dense", "dense"),
    "affine8": ("affine8", "affine8"),
    "affine4": ("affine4", "affine4"),
    "k8v4": ("affine8", "affine4"),
    "turbo4": ("turbo4", "turbo4"),
    "turbo3": ("turbo3", "turbo3"),
    "turbo2": ("turbo2", "turbo2"),
}
"""What each name means for keys and for values."""

DENSE_LAST: Final[dict[CodecName, int]] = {"affine4": 1, "turbo4": 1, "turbo3": 1, "turbo2": 1}
"""How many of the last KV layers a codec leaves dense unless told otherwise: the last one feeds
the logits with nothing behind it to average an error away."""


def check_codec_name(text: str) -> CodecName:
    """Return the name; raises ValueError that lists the known ones."""
    for name in CODEC_NAMES:
        if name == text:
            return name
    raise ValueError(f"unknown codec {text!r}: choose one of {', '.join(CODEC_NAMES)}")


Pairs = tuple[tuple[str, str], ...]

DIGEST_LENGTH: Final = 16
_MAX_TEXT: Final = 1024
_WORD = re.compile(r"[a-z][a-z0-9_-]*")
_VALUE = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_TEXT = re.compile(r"([^/()#]+)/([1-9][0-9]{0,3})(?:\(([^()#]+)\))?(?:#([^()#]+))?")


@dataclass(frozen=True, slots=True)
class CodecIdentity:
    """What must be equal for parts written by one codec to be read by another.

    `version` is the dialect of the algorithm and of its parts; `tables` are digests of the
    constants that the parts do not carry.
    """

    name: str
    version: int
    parameters: Pairs = ()
    tables: Pairs = ()

    def __post_init__(self) -> None:
        if not _WORD.fullmatch(self.name):
            raise ValueError(f"codec name {self.name!r} is not lower-case letters and digits")
        if not 1 <= self.version <= 9999:
            raise ValueError(f"codec version {self.version} is outside 1..9999")
        for pairs in (self.parameters, self.tables):
            keys = [key for key, _ in pairs]
            if keys != sorted(set(keys)):
                raise ValueError(f"codec parameters are not sorted and unique: {keys}")
            for key, value in pairs:
                if not (_WORD.fullmatch(key) and _VALUE.fullmatch(value)):
                    raise ValueError(f"codec parameter {key}={value} has a character not allowed")

    def __str__(self) -> str:
        text = f"{self.name}/{self.version}"
        if self.parameters:
            text += f"({_join(self.parameters)})"
        if self.tables:
            text += f"#{_join(self.tables)}"
        return text

    def parameter(self, key: str) -> str:
        """Return one parameter's text; raises KeyError when the identity has none of that name."""
        return dict(self.parameters)[key]


def make_identity(
    name: str, version: int, parameters: dict[str, object], tables: dict[str, str] | None = None
) -> CodecIdentity:
    """Return an identity with both lists in canonical order."""
    texts = sorted((key, str(value)) for key, value in parameters.items())
    return CodecIdentity(name, version, tuple(texts), tuple(sorted((tables or {}).items())))


def parse_identity(text: str) -> CodecIdentity:
    """Return the identity that `text` spells; raises ValueError unless it is the canonical form."""
    match = _TEXT.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise ValueError(f"not a codec identity: {text[:80]!r}")
    name, version, parameters, tables = match.groups()
    identity = CodecIdentity(name, int(version), _split(parameters), _split(tables))
    if str(identity) != text:
        raise ValueError(f"not the canonical form of a codec identity: {text[:80]!r}")
    return identity


def table_digest(table: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a table's bytes."""
    return hashlib.sha256(table).hexdigest()[:DIGEST_LENGTH]


def _join(pairs: Pairs) -> str:
    return ",".join(f"{key}={value}" for key, value in pairs)


def _split(text: str | None) -> Pairs:
    if text is None:
        return ()
    pairs = [tuple(item.partition("=")) for item in text.split(",")]
    if any(separator != "=" for _, separator, _ in pairs):
        raise ValueError(f"codec parameters without '=': {text[:80]!r}")
    return tuple((key, value) for key, _, value in pairs)
