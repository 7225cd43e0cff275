"""What a store deletes when it is asked to prune, and what it writes again afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest

from kit.storage import Story, commit, commit_to_disk, files_in, open_store
from omlx_cache.control.operations import operations
from omlx_cache.control.serialization import encoded
from omlx_cache.identity.namespace import Namespace, software
from omlx_cache.status.routes import Routes


def _ask(store: Any, name: str, **arguments: object) -> Any:
    return json.loads(encoded(operations(store)[name](arguments)))


def test_a_store_keeps_its_own_versions_whatever_a_request_says(tmp_path: Path) -> None:
    mine, foreign = Story("mine"), Story("foreign")
    with open_store(tmp_path) as store:
        for story, packages in ((mine, software()), (foreign, {"mlx": "9", "mlx-lm": "9"})):
            store.register(Namespace(story.namespace, {"format": 1, "software": packages}))
            commit(store, story, 1)
        assert store.flush()
        kept = [{"format": "1", "mlx": "9", "mlx-lm": "9"}]
        assert _ask(store, "prune", keep=kept)["pages"] == 0
        reply = _ask(store, "prune", keep=[{"format": "what"}, None], dry_run=False)
        assert reply["stale"]["namespaces"] == [foreign.namespace.hex()]
        assert store.find(mine.id(1)) is not None
        assert store.find(foreign.id(1)) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"keep": "all"},
        {"before_ns": -1},
        {"before_ns": 1.5},
        {"to_bytes": True},
        {"to_bytes": "1GiB"},
        {"dry_run": 0},
        {"dry_run": False, "timeout": 0},
    ],
    ids=str,
)
def test_a_request_of_another_shape_deletes_nothing(
    tmp_path: Path, arguments: dict[str, object]
) -> None:
    with open_store(tmp_path) as store:
        commit_to_disk(store, Story(), 1)
        body = json.dumps(arguments).encode()
        answer = Routes(store.operations).answer("POST", "/store/prune", {}, None, body)
        assert answer.status == 400
        assert len(files_in(tmp_path)) == 1
