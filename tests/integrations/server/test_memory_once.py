"""`serve --memory-once`: pages leave memory while a request is computed, and are back for the next
turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.tinylm import Server, serve_ours

from .conftest import assert_same_but_cached_more, converse
from .test_lifetime import stats, wait_until_durable


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("o")


@pytest.fixture
def server(
    request: pytest.FixtureRequest, home: Path, models: dict[str, Path], forks: None
) -> Iterator[Server]:
    model = str(models[request.param])
    flags = ("--model", model, "--memory-once", "--block-size", "16")
    server = serve_ours(home, *flags, forked=True)
    yield server
    server.kill()


@pytest.mark.parametrize(
    ("server", "model"),
    [("dense", "dense"), ("windowed", "windowed"), ("hybrid", "hybrid")],
    indirect=["server"],
)
def test_turns_find_in_memory_what_left_it_meanwhile(
    server: Server, home: Path, models: dict[str, Path], theirs: Server, model: str
) -> None:
    ours = converse(server, models[model], "rivers", turns=1)
    wait_until_durable(home)
    # The same again: all of it is on the disk before it is held.
    ours += converse(server, models[model], "rivers", turns=3, max_tokens=40)[1:]
    wait_until_durable(home)
    figures = stats(home)
    assert figures["hot"]["let_go_pages"] > 0
    assert figures["requests"]["restored_tokens"] > 0
    assert figures["requests"]["restored_cold_tokens"] == 0
    if model == "dense":
        again = converse(server, models[model], "rivers", turns=3)
        assert_same_but_cached_more(again, converse(theirs, models[model], "rivers", turns=3))
