"""`/v1/models`: the model that is served, with and without a hub cache, in one whole answer."""

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest

from kit.tinylm import Server, serve_ours
from kit.wire import exchange
from omlx_cache.integrations.mlx_lm.server.offered import offered

ON_THE_HUB = ("config.json", "model.safetensors.index.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub cache with one model, one data set, and a folder that is broken."""
    root = tmp_path_factory.mktemp("hub")
    for name in ("models--org--fetched", "datasets--org--words"):
        snapshot = root / name / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (root / name / "refs").mkdir()
        (root / name / "refs" / "main").write_text("abc")
        for file in ON_THE_HUB:
            (snapshot / file).write_text("{}")
    (root / "models--org--broken").mkdir()
    return root


@pytest.fixture(scope="module", params=[False, True], ids=["no hub cache", "a hub cache"])
def fetched(request: pytest.FixtureRequest) -> list[str]:
    """What the hub's cache of the server has."""
    return ["org/fetched"] * request.param


@pytest.fixture(scope="module")
def server(
    fetched: list[str],
    models: dict[str, Path],
    hub: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    place = hub if fetched else hub / "there is none"
    home = tmp_path_factory.mktemp("models")
    # Not forked: the hub's client reads the variable when it is imported.
    server = serve_ours(home, "--model", str(models["dense"]), HF_HUB_CACHE=str(place))
    yield server
    assert server.stop() == 0, server.text()
    assert "Traceback" not in server.text()


def test_the_served_model_comes_first_in_one_whole_answer(
    server: Server, models: dict[str, Path], fetched: list[str]
) -> None:
    for path in ("/v1/models", "/v1/models/", "/v1/models?limit=5"):
        answer = exchange(server.url, f"GET {path} HTTP/1.1\r\n\r\n".encode())
        assert answer.status == 200
        assert int(answer.headers["content-length"]) == len(answer.content)
        listed = json.loads(answer.content)
        assert listed["object"] == "list"
        assert [row["id"] for row in listed["data"]] == [str(models["dense"]), *fetched]


def test_a_client_asks_for_what_was_listed(server: Server) -> None:
    with server.client() as client:
        listed = [model.id for model in client.models.list()]
        assert [client.models.retrieve(name).id for name in listed] == listed
        said = client.completions.create(model=listed[0], prompt="Hello", max_tokens=2)
        assert said.model == listed[0]
        with pytest.raises(openai.NotFoundError) as refusal:
            client.models.retrieve("org/unheard")
    assert refusal.value.body == "no model here is called org/unheard"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/nothing", "/v1/models/x"])
def test_head_is_get_without_the_content(server: Server, path: str) -> None:
    asked = [
        exchange(server.url, f"{method} {path} HTTP/1.1\r\n\r\n".encode())
        for method in ("GET", "HEAD")
    ]
    assert asked[0].status == asked[1].status
    assert asked[0].headers["content-length"] == asked[1].headers["content-length"]
    assert json.loads(asked[0].content)
    assert asked[1].content == b""


def test_with_an_adapter_the_name_is_the_one_that_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "none"))

    def names(key: tuple[str, ...] | None, adapter: str | None = None) -> list[str]:
        args = Namespace(model="org/base", adapter_path=adapter)
        return list(offered(SimpleNamespace(cli_args=args, model_key=key)))

    assert names(None) == ["org/base"]
    assert names(("org/base", None, None)) == ["org/base"]
    assert names(("org/base", "adapter", None), "adapter") == ["default_model"]
    assert names(("org/other", None, None)) == ["org/base", "org/other"]
