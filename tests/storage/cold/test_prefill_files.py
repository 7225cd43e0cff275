"""prefill.json, which earlier versions write beside a namespace's document: it goes with that."""

from pathlib import Path

import pytest

from kit.storage import Story, open_cold
from omlx_cache_daemon.changing import remove_namespace


@pytest.mark.parametrize("how", ["removed", "evicted before the start"])
def test_a_rate_goes_with_its_namespace(tmp_path: Path, how: str) -> None:
    story = Story()
    tier = open_cold(tmp_path)
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    tier.close()
    place = tmp_path / story.namespace.hex()
    rate = place / "prefill.json"
    rate.write_text('{"model": "m", "tokens": 45678, "seconds": 12.5}')
    rate.chmod(0o600)
    if how == "removed":
        remove_namespace(tmp_path, story.namespace)
    else:
        for page in place.rglob("*.safetensors"):
            page.unlink()
        open_cold(tmp_path).close()
    assert not place.exists()
