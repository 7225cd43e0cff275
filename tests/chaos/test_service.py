"""Three servers and the service on one directory: whoever is killed or stopped, others go on."""

import sys

import pytest

from chaos.service.run import HOWS, run

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped and seen on Linux"),
]


def test_nobody_notices_the_end_or_the_standstill_of_another() -> None:
    done = run(len(HOWS) * 4 * 6.0)
    assert done.faults == [], done.report
