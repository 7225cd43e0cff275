"""To be told how answers end serves more tokens, in each of some mixes of agents and people."""

import pytest
from hints.mix import mix, replay


@pytest.mark.nightly
@pytest.mark.parametrize(("agents", "people", "room"), [(4, 12, 200), (6, 6, 300)])
def test_it_gains_and_never_loses(agents: int, people: int, room: int) -> None:
    gains = []
    for seed in range(3):
        plain, told = (
            replay(mix(agents, people, 1, seed), room, hints=hints) for hints in (False, True)
        )
        gains.append(told.share - plain.share)
    assert min(gains) >= 0, gains
    assert sum(gains) / 3 > 0.01, gains
