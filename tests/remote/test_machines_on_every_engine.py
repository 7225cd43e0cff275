"""Two machines share what one computed, whatever store lies between them."""

from pathlib import Path

import pytest

from kit.remote.engines import PATIENT_SECONDS
from kit.remote.machines import Machine, on_another_machine
from kit.remote.places import STORES

TOKENS = 321
SECRET = "a secret that both machines have"


@pytest.mark.parametrize("name", [*STORES][1:])
def test_what_one_machine_computed_another_restores_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_REMOTE_SECRET", SECRET)
    monkeypatch.setenv("OMLX_CACHE_REMOTE_LOOKUP_SECONDS", str(PATIENT_SECONDS))
    with STORES[name](tmp_path) as url:
        assert on_another_machine(url, tmp_path / "a", "qwen3_next", TOKENS) == 0
        machine = Machine("qwen3_next", tmp_path / "b", url)
        with machine.store() as store:
            turn = machine.ask(store, TOKENS, new=2)
            usage = store.stats()
    assert (usage.remote.state, usage.remote.errors) == ("ok", {})
    assert usage.requests.restored_remote_tokens == turn.cached == TOKENS - 1
    assert machine.is_right(turn, TOKENS)
