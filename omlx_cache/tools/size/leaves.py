"""What one layer's cache holds, as sizes: the input of every computation here."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["paged", "window", "chunk", "state"]


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys (heads, tokens, key_dim) and values (heads, tokens, value_dim) of one cache.

    window: 0 for all tokens, else how many of the last ones are held. chunk: the window
    starts anew at its multiples (chunked attention).
    """

    heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    chunk: bool = False

    @property
    def kind(self) -> Kind:
        if self.window == 0:
            return "paged"
        return "chunk" if self.chunk else "window"


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a recurrent state; itemsize 0 means the model's own dtype."""

    elements: int
    itemsize: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot whose size does not depend on the number of tokens."""

    parts: tuple[Part, ...]

    @property
    def kind(self) -> Kind:
        return "state"

    def size(self, itemsize: int) -> int:
        return sum(part.elements * (part.itemsize or itemsize) for part in self.parts)


Leaf: TypeAlias = Attention | State


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """Every cache of a model, in order; `notes` says what had to be assumed."""

    model_type: str
    itemsize: int
    leaves: tuple[Leaf, ...]
    notes: tuple[str, ...] = ()
