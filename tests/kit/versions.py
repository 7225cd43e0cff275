"""Tests of several versions of mlx-lm: what all of them have, by one name."""

import copy
import importlib
import importlib.util
from typing import Any

import mlx_lm
import pytest
from mlx_lm.models import cache as upstream

LOCKED = "0.32.2"
BEFORE_0_32 = hasattr(upstream._BaseCache, "meta_state")


def since_0_32(value: Any, why: str) -> Any:
    """A parameter of a test that mlx-lm before 0.32 cannot pass."""
    return pytest.param(value, marks=pytest.mark.skipif(BEFORE_0_32, reason=f"mlx-lm: {why}"))


def keys_and_values(cache: Any) -> Any:
    """The tokens in use of one layer; before 0.32 its state is that."""
    return cache.state[:2] if BEFORE_0_32 and not _ours(cache) else cache.keys_and_values()


def whole_state(cache: Any) -> Any:
    """Everything that a cache is rebuilt from: two parts before 0.32, nothing for an empty one."""
    if not BEFORE_0_32:
        return cache.state
    return [] if cache.keys is None else [cache.state, cache.meta_state]


def reloaded(cache: Any, into: Any = None) -> Any:
    """What `from_state` of a class, the cache's own unless told, makes of its state."""
    made = into or type(cache)
    if not BEFORE_0_32:
        return made.from_state(cache.state)
    if cache.keys is None:
        return copy.deepcopy(cache)
    return made.from_state(cache.state, cache.meta_state)


def stops(*sequences: list[int]) -> Any:
    """What ends a row of a batch: at any of some sequences of tokens."""
    generate: Any = importlib.import_module("mlx_lm.generate")
    if BEFORE_0_32:
        ends = {"normal": [(sequence, None) for sequence in sequences]} if sequences else {}
        return generate.SequenceStateMachine(ends)
    return generate.StopSequences(list(sequences) or None)


def has_model(module: str) -> bool:
    """Whether the installed mlx-lm has a model file; only older ones may lack what a test names."""
    found = importlib.util.find_spec(f"mlx_lm.models.{module}")
    return mlx_lm.__version__ == LOCKED or found is not None


def _ours(cache: Any) -> bool:
    return type(cache).__module__.startswith("omlx_cache.")
