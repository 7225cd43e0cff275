"""A process that ends without closing its store."""

import subprocess
import sys
from pathlib import Path

import pytest

from omlx_cache.control.cold_files import scan

PROGRAM = """
import sys
from omlx_cache import BlockStore, CacheSettings, PrefixCache
import mlx.core as mx
from kit import zoo

model = zoo.build("llama")
settings = CacheSettings(cold_dir=sys.argv[1], min_free_bytes=0, block_size=16, socket="off")
store = BlockStore(settings)
with PrefixCache(model, store).session(list(range(200))) as session:
    for chunk in session.prefill_chunks():
        mx.eval(model(mx.array([chunk]), cache=session.prompt_cache))
    session.commit()
"""


LOST = """
import gc, sys
from omlx_cache import BlockStore, CacheSettings
from kit.storage import Story, commit

settings = CacheSettings(cold_dir=sys.argv[1], min_free_bytes=0, socket="off", write_policy="lazy")
store = BlockStore(settings)
commit(store, Story(), *range(1, 14))
del store
"""


@pytest.mark.parametrize("program", [PROGRAM, LOST], ids=["open", "lost"])
def test_what_is_pending_is_written_when_the_interpreter_ends(tmp_path: Path, program: str) -> None:
    cold = tmp_path / "cold"
    subprocess.run([sys.executable, "-c", program, str(cold)], check=True)
    assert sum(1 for _ in scan(cold)) == 13
