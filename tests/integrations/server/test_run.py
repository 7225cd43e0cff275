"""`omlx-cache run mlx_lm.server`: mlx-lm's own server and flags, with this cache in its place."""

import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from kit.examples import some
from kit.tinylm import LmServer, run_server
from kit.versions import BEFORE_0_32

from .conftest import assert_same_but_cached_more, converse

SERVER = "mlx_lm.server"
pytestmark = pytest.mark.usefixtures("forks")


@pytest.mark.parametrize("model", some(["dense", "windowed", "hybrid"], "windowed"))
def test_turns_are_restored_before_and_after_a_restart(
    model: str, models: dict[str, Path], theirs: LmServer, tmp_path: Path
) -> None:
    plain = converse(theirs, models[model], "runs")
    for again in (False, True):
        server = run_server(tmp_path, SERVER, "--model", str(models[model]))
        try:
            mine = converse(server, models[model], "runs")
        finally:
            code = server.stop()
        assert code == 0, server.text()
        assert_same_but_cached_more(mine, plain)
        # The first prompt of a conversation was computed in the process before.
        assert mine[0].cached_tokens == (mine[0].prompt_tokens - 1 if again else 0)
        assert mine[2].cached_tokens > mine[1].prompt_tokens
    assert server.text().count("keeps the prompts of mlx_lm.server (mlx-lm ") == 2
    assert str(tmp_path / "cold") in server.text()


# One in bfloat16, and long enough that one joins while another answers; and one whose states take
# a batch's padding for tokens.
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["windowed", "padded"])
def test_requests_at_once_get_the_answers_of_each_alone(
    name: str, models: dict[str, Path], theirs: LmServer, tmp_path: Path
) -> None:
    model, topics = models[name], ["chat" + " about it" * 9 * number for number in range(4)]
    alone = [converse(theirs, model, topic, 2, max_tokens=40) for topic in topics]
    server = run_server(tmp_path, SERVER, "--model", str(model))
    try:
        with ThreadPoolExecutor(len(topics)) as pool:
            asked = partial(converse, server, model, turns=2, max_tokens=40)
            together = list(pool.map(asked, topics))
    finally:
        assert server.stop() == 0, server.text()
    for mine, plain in zip(together, alone, strict=True):
        assert_same_but_cached_more(mine, plain)


@pytest.mark.skipif(BEFORE_0_32, reason="mlx-lm: its server cannot pack caches")
def test_its_flags_are_its_own(models: dict[str, Path], tmp_path: Path) -> None:
    flags = ("--model", str(models["wide"]), "--kv-bits", "8", "--kv-group-size", "32")
    started = ("--quantized-kv-start", "0", "--log-level", "DEBUG")
    turns = []
    for _ in range(2):
        server = run_server(tmp_path, SERVER, *flags, *started)
        try:
            turns.append(converse(server, models["wide"], "packs"))
        finally:
            assert server.stop(signal.SIGINT) == 0, server.text()
    assert [turn.text for turn in turns[0]] == [turn.text for turn in turns[1]]
    assert turns[1][2].cached_tokens == turns[1][2].prompt_tokens - 1
    assert " - DEBUG - " in server.text()
