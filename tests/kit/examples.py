"""How many examples a property is tried with: many in every run, and more in the nightly one."""

from hypothesis import settings

EVERY_RUN = "every run"
NIGHTLY = "nightly"
_MORE = 5


def examples(count: int) -> int:
    """The examples of a property that takes `count` in every run.

    The nightly run has Hypothesis's profile of that name.
    """
    return count * _MORE if settings.get_current_profile_name() == NIGHTLY else count
