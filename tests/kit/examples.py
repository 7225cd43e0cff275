"""How much of a property or a product every run tries: a part, and the nightly run all of it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

EVERY_RUN = "every run"
NIGHTLY = "nightly"
_MORE = 5


def examples(count: int, nightly: int | None = None) -> int:
    """The examples of a property that takes `count` in every run, and five times as many, or
    `nightly`, in the nightly run, which has Hypothesis's profile of that name."""
    if settings.get_current_profile_name() != NIGHTLY:
        return count
    return count * _MORE if nightly is None else nightly


def some(values: Sequence[Any], *kept: Any) -> list[Any]:
    """Parameters of which every run takes those in `kept`, and the nightly run all. A value that is
    a tuple has the parameters of several names."""
    assert all(value in values for value in kept), f"{kept} is not a part of {values}"
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else [value]),
            marks=[] if value in kept else [pytest.mark.nightly],
        )
        for value in values
    ]
