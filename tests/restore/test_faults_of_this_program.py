"""A fault of the program itself, wherever it is, is a miss in a request, and no exception."""

from pathlib import Path
from typing import Any

import pytest

from kit import zoo
from kit.drive import random_tokens, request, settings
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.cold.disk import FileSystem

PROMPT = random_tokens(200, 1)


class FaultyProgram(FileSystem):
    """Reads no payload for want of a name."""

    def read_into(self, fd: int, offset: int, buffers: Any) -> int:
        raise NameError("a name that is not defined")


@pytest.mark.parametrize("deadline", [None, 30.0])
def test_a_reader_with_a_bug_is_a_miss(tmp_path: Path, deadline: float | None) -> None:
    model = zoo.build("llama")
    with BlockStore(settings(tmp_path)) as store:
        request(model, PrefixCache(model, store), PROMPT)
        assert store.flush(30)
    with BlockStore(settings(tmp_path), filesystem=FaultyProgram()) as store:
        cache = PrefixCache(model, store)
        with cache.session(PROMPT, deadline=deadline) as session:
            assert session.cached_tokens == 0
            assert session.miss_reason
            assert session.remaining_tokens == PROMPT


def test_a_lookup_with_a_bug_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_all(pages: Any) -> Any:
        raise NameError("a name that is not defined")

    model = zoo.build("llama")
    with BlockStore(settings(tmp_path)) as store:
        monkeypatch.setattr(store, "find_all", find_all)
        turn = request(model, PrefixCache(model, store), PROMPT, commit=False)
        assert turn.cached == 0
        assert turn.reason.startswith("error")
