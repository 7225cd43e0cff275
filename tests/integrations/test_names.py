"""Names of a host that are not there are found before anything of it runs."""

import pytest

from omlx_cache.integrations.names import HostName, lacks, missing


@pytest.mark.parametrize(
    ("module", "attribute", "there"),
    [
        ("queue", "Queue", True),
        ("queue", "Queue.put", True),
        ("queue", "Queue.mutex", True),
        ("queue", "Queue.pond", False),
        ("queue", "Lake.put", False),
        ("no_such_module", "Queue", False),
    ],
)
def test_a_name_is_there_or_missing(module: str, attribute: str, there: bool) -> None:
    name = HostName(module, attribute, "to wait")
    assert missing([name], "1.0") == ([] if there else [name])


def test_a_version_is_asked_only_for_the_names_that_it_has() -> None:
    new = HostName("queue", "Queue.pond", "to fish", ">=2")
    assert missing([new], "1.9") == []
    assert missing([new], "2.1rc1") == missing([new], "3.1") == [new]


def test_the_line_names_the_host_and_what_it_lacks() -> None:
    pond = HostName("queue", "Queue.pond", "to fish")
    line = "angler 2.0 has no `queue.Queue.pond`: it runs with its own cache"
    assert lacks("angler", "2.0", [pond]) == line
