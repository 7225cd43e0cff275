"""Names of a host that are not there are found before anything of it runs."""

import pytest

from omlx_cache.integrations import host_server
from omlx_cache.integrations.host_server import (
    MLX_VLM,
    OPENAI_SERVER,
    VLLM_MLX,
    HostName,
    HostServer,
    missing,
)


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
    name = HostName(module, attribute)
    assert missing([name], "1.0") == ([] if there else [name])


def test_a_version_is_asked_only_for_the_names_that_it_has() -> None:
    new = HostName("queue", "Queue.pond", ">=2")
    assert missing([new], "1.9") == []
    assert missing([new], "2.1rc1") == missing([new], "3.1") == [new]


@pytest.mark.parametrize("host", [MLX_VLM, OPENAI_SERVER, VLLM_MLX], ids=lambda host: host.name)
def test_a_server_that_lacks_any_of_its_names_keeps_its_own_cache(
    host: HostServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gone in host.needed:
        monkeypatch.setattr(host_server, "_is_there", lambda name, gone=gone: name != gone)
        assert f"`{gone.module}.{gone.attribute}`" in host.lacking()
        assert not host.is_complete(require=False)
    monkeypatch.setattr(host_server, "_is_there", lambda name: True)
    assert host.is_complete(require=True)
