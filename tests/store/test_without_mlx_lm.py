"""What keeps caches of other packages works where mlx-lm cannot be imported."""

import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
    import sys

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "mlx_lm":
                raise ImportError(f"{name} is blocked")

    sys.meta_path.insert(0, Blocked())
    import mlx.core as mx
    import mlx.nn as nn
    import omlx_cache, omlx_cache_storage
    from omlx_cache import BlockStore, CacheSettings, PrefixCache, register_adapter
    from omlx_cache.adapters.kv import KVCacheAdapter

    class Grown:
        keys = values = None
        offset, step = 0, 16

        @property
        def state(self):
            return self.keys, self.values

        def add(self, side):
            old = [] if self.keys is None else [self.keys[:, :, : self.offset]]
            self.keys = self.values = mx.concatenate([*old, side], axis=2)
            self.offset = self.keys.shape[2]

    register_adapter(f"{Grown.__module__}.Grown", KVCacheAdapter())
    model = nn.Linear(4, 4)
    mx.eval(model.parameters())
    settings = CacheSettings(
        cold_dir=sys.argv[1], block_size=16, socket="off", min_free_bytes=0, durability="none"
    )
    tokens = list(range(50))
    for expected in (0, 49):
        with BlockStore(settings) as store:
            cache = PrefixCache(model, store, make_cache=lambda: [Grown()])
            with cache.session(tokens) as session:
                assert session.cached_tokens == expected, session.miss_reason
                for part in session.prefill_chunks():
                    for one in session.prompt_cache:
                        one.add(mx.array(part, mx.float32).reshape(1, 1, -1, 1))
                kept = session.prompt_cache[0]
                assert kept.keys[0, 0, : kept.offset, 0].tolist() == tokens
                session.commit()
            store.flush()
    with BlockStore(settings) as store:
        try:
            PrefixCache(model, store)
        except ImportError as error:
            assert "make_cache=" in str(error) and "mlx-lm>=" in str(error), error
        else:
            raise AssertionError("nothing can make this model's caches")
    assert not any(name.startswith("mlx_lm") for name in sys.modules)
"""


def test_caches_of_others_are_kept_where_mlx_lm_cannot_be_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
