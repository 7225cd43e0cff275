"""Three servers and the service on one directory: whoever is killed or stopped, others go on."""

import sys
import tempfile
from pathlib import Path

import pytest

from qa.chaos.service import HOWS, run_service
from qa.chaos.tally import Tally

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped and seen on Linux"),
]


def test_nobody_notices_the_end_or_the_standstill_of_another(tally: Tally) -> None:
    # The path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="oc-", dir="/tmp") as home:
        run_service(len(HOWS) * 4 * 6.0, tally, Path(home))
    assert tally.failures == []
    assert tally.sum("answered") > 0
