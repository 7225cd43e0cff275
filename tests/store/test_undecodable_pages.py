"""Pages that one process cannot decode stay for the others; it has its own in memory."""

import sys
from pathlib import Path

import pytest

from kit import zoo
from kit.drive import random_tokens, request, settings
from kit.storage import files_in
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.format import packing

PROMPT = random_tokens(200, 1)

pytestmark = pytest.mark.skipif(not packing.available(), reason="no zstd is installed")


def test_a_commit_leaves_the_file_of_a_page_that_it_could_not_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.build("llama")

    def open_store() -> BlockStore:
        return BlockStore(settings(tmp_path, cold_codec="zstd"))

    with open_store() as store:
        request(model, PrefixCache(model, store), PROMPT)
        assert store.flush(30)
    packed = {path: path.read_bytes() for path in files_in(tmp_path)}
    with monkeypatch.context() as without:
        for name in ("zstandard", "compression.zstd"):
            without.setitem(sys.modules, name, None)
        with BlockStore(settings(tmp_path)) as store:
            cache = PrefixCache(model, store)
            turn = request(model, cache, PROMPT)
            assert (turn.cached, turn.reason) == (0, "undecodable")
            store.flush(30)
            assert {path: path.read_bytes() for path in files_in(tmp_path)} == packed
            # The tail's file is found to be undecodable by the second request only.
            assert request(model, cache, PROMPT).cached >= len(PROMPT) // 32 * 32
            assert request(model, cache, PROMPT).cached == len(PROMPT) - 1
            usage = store.stats().cold
            assert usage.undecodable_pages
    with open_store() as store:
        turn = request(model, PrefixCache(model, store), PROMPT)
        assert turn.cached == len(PROMPT) - 1
