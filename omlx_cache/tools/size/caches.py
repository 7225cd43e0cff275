"""What a model's caches hold, as bytes: what a trace finds and an estimate multiplies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from omlx_cache.codecs.identity import CodecName

Kind: TypeAlias = Literal["paged", "window", "state"]


class Sides(NamedTuple):
    """Bytes of one token, in all caches of a group."""

    keys: int
    values: int


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """The caches of one model that age alike, together.

    `window` is how many tokens they hold, 0 for all of them; `token_bytes` what a token takes
    under each codec; `snapshot_bytes` what does not grow with the tokens.
    """

    kind: Kind
    window: int
    caches: int
    snapshot_bytes: int
    token_bytes: Mapping[CodecName, Sides]


@dataclass(frozen=True, slots=True)
class ModelCaches:
    """Every cache of a model, by group; `notes` says what had to be assumed."""

    model_type: str
    itemsize: int
    groups: tuple[GroupBytes, ...]
    notes: tuple[str, ...] = ()
