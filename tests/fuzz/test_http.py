"""A server takes whatever is thrown at it."""

import pytest

from fuzz.http import main


def test_a_server_takes_some_hundred_requests_as_nobody_should_send_them() -> None:
    report = main(400, seed=1)
    assert report.sound, (report, report.wrong)
    assert report.statuses[200] > 10
    assert report.statuses[400] > 100


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_server_takes_fifty_thousand_of_them() -> None:
    report = main(50_000, seed=2)
    assert report.sound, (report, report.wrong)
