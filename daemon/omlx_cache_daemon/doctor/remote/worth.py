"""What a link is good for: reading a model's tokens against computing them."""

from typing import Final, NamedTuple

PREFIX_TOKENS: Final = 8192
"""The prefix that a look-up's time is spread over."""


class Model(NamedTuple):
    """A model whose layers keep every token, in 16 bits."""

    name: str
    layers: int
    heads: int
    head_dim: int

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token, as `omlx-cache size` has them."""
        return 2 * 2 * self.layers * self.heads * self.head_dim


MODELS: Final = (
    Model("Llama 3.2 1B", 16, 8, 64),
    Model("Qwen3 30B-A3B", 48, 4, 128),
    Model("Llama 3.1 8B", 32, 8, 128),
    Model("Qwen3 8B", 36, 8, 128),
    Model("Llama 3.3 70B", 80, 8, 128),
)


class Link(NamedTuple):
    """A link on paper: what its name says, what of that is used, and a round trip."""

    name: str
    bits_per_second: float
    usable: float
    trip_seconds: float

    @property
    def rate(self) -> float:
        return self.bits_per_second * self.usable / 8


LINKS: Final = (
    Link("1 GbE", 1e9, 0.9, 0.0003),
    Link("10 GbE", 10e9, 0.9, 0.0001),
    Link("25 GbE", 25e9, 0.9, 0.00005),
    Link("Thunderbolt 40 Gb/s", 40e9, 0.5, 0.0003),
    Link("100 GbE", 100e9, 0.5, 0.00005),
)
ASSUMED: Final = (
    "on paper: 90 % of the wire is used; half of 100 GbE and Thunderbolt, where the hosts are the "
    "limit; a look-up is three round trips; pages travel as they are, neither packed nor encrypted"
)


class Worth(NamedTuple):
    """For one model: what a token takes to read, in a prefix of `PREFIX_TOKENS`, the look-up
    included; who computes fewer tokens a second gains."""

    model: str
    token_bytes: int
    token_seconds: float
    tokens_per_second: float

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return self._asdict()


def worth(model: Model, rate: float, lookup_seconds: float) -> Worth:
    """Return what a link of so many bytes a second is worth for a model."""
    seconds = model.token_bytes / rate + lookup_seconds / PREFIX_TOKENS
    return Worth(model.name, model.token_bytes, seconds, 1 / seconds)


def most_token_bytes(rate: float, lookup_seconds: float, tokens_per_second: float) -> float:
    """Return how long a token may be on the wire, so that reading it takes no longer than computing
    it at so many a second; 0 where the look-up alone does."""
    left = 1 / tokens_per_second - lookup_seconds / PREFIX_TOKENS
    return max(0.0, left * rate)
