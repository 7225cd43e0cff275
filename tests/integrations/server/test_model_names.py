"""What a request may call a model: a wrong name is told what is here, and drops nothing."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.tinylm import Server, serve_ours
from kit.wire import Answer, completion, exchange
from omlx_cache.integrations.mlx_lm.server.loading import WatchedProvider
from omlx_cache.integrations.mlx_lm.server.refusals import NoSuchModel

LOADED = "there is no model {} here; this server has {} (default_model means it too)"


@pytest.fixture(scope="module")
def server(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, forks: None
) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("names")
    server = serve_ours(home, "--model", str(models["dense"]), forked=True)
    yield server
    assert server.stop() == 0, server.text()
    assert "Traceback" not in server.text()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, forks: None) -> Iterator[Server]:
    """A server that was started without a model."""
    server = serve_ours(tmp_path_factory.mktemp("bare"), forked=True)
    yield server
    assert server.stop() == 0, server.text()
    assert "Traceback" not in server.text()


def ask(server: Server, **fields: object) -> Answer:
    return exchange(server.url, completion(prompt="Hello", **fields))


@pytest.mark.parametrize("name", ["gpt-4", "org/unheard", "/there/is/none", "../none"])
def test_a_wrong_name_is_told_the_right_one(
    name: str, server: Server, models: dict[str, Path]
) -> None:
    answer = ask(server, model=name)
    assert (answer.status, answer.error) == (404, LOADED.format(name, models["dense"]))
    lines = [line for line in server.text().splitlines() if repr(name) in line]
    assert len(lines) == 1, server.text()


def test_a_file_is_no_model(server: Server, models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.touch()
    assert ask(server, model=str(file)).error == LOADED.format(file, models["dense"])


def test_the_short_name_that_people_see_means_the_loaded_model(
    server: Server, models: dict[str, Path]
) -> None:
    by_path = ask(server, model=str(models["dense"]))
    by_label = ask(server, model=models["dense"].name)
    assert by_label.status == 200, by_label.content
    assert by_path.status == 200, by_path.content


def test_without_a_model_requests_name_it(bare: Server, models: dict[str, Path]) -> None:
    assert ask(bare, model=str(models["dense"])).status == 200
    unnamed = ask(bare)
    assert unnamed.status == 404
    assert unnamed.error == "no model was named, and this server was started without --model"
    wrong = "there is no model gpt-4 here; this server has none of its own (serve --model)"
    assert ask(bare, model="gpt-4").error == wrong
    assert ask(bare, model=str(models["dense"])).status == 200


def test_a_wrong_name_drops_no_model(models: dict[str, Path]) -> None:
    nothing = dict.fromkeys(("adapter_path", "draft_model", "pipeline", "chat_template"))
    flags = {**nothing, "trust_remote_code": False, "use_default_chat_template": False}
    provider = WatchedProvider(Namespace(model=str(models["dense"]), **flags))
    provider.load_default()
    loaded = provider.model
    with pytest.raises(NoSuchModel):
        provider.load("../none", None, "default_model")
    assert provider.model is loaded
    provider.load(models["dense"].name, None, "default_model")
    assert provider.model is loaded is not None
