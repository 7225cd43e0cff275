"""The same requests to mlx-lm's own server and to ours: the same texts, no fewer cached tokens."""

from pathlib import Path

import pytest

from kit.examples import some
from kit.tinylm import LmServer, serve_ours, serve_upstream
from kit.versions import BEFORE_0_32

from .conftest import SYSTEM, Start, ask, assert_same_but_cached_more, converse, stats


@pytest.mark.parametrize("model", some(["dense", "windowed", "hybrid"], "windowed"))
def test_a_chat_of_several_turns(
    model: str, models: dict[str, Path], ours: LmServer, theirs: LmServer
) -> None:
    mine = converse(ours, models[model], "ships")
    assert_same_but_cached_more(mine, converse(theirs, models[model], "ships"))
    assert mine[2].cached_tokens > mine[1].prompt_tokens


@pytest.mark.parametrize("model", some(["dense", "windowed"], "windowed"))
def test_a_chat_whose_next_turns_are_prepared(
    model: str, models: dict[str, Path], start: Start, home: Path, theirs: LmServer
) -> None:
    mine = converse(start(model, "--prepare=auto"), models[model], "plans", 4, pause=1.5)
    requests = stats(home)["requests"]
    assert_same_but_cached_more(mine, converse(theirs, models[model], "plans", 4))
    # A machine that is busy prepares less.
    assert requests["prepared_tokens"] > 0


@pytest.mark.nightly
def test_seeded_sampling_takes_the_sequential_path(
    models: dict[str, Path], ours: LmServer, theirs: LmServer
) -> None:
    options = {"temperature": 0.8, "top_p": 0.9, "seed": 11}
    mine = converse(ours, models["dense"], "seeds", **options)
    assert_same_but_cached_more(mine, converse(theirs, models["dense"], "seeds", **options))
    assert mine[1].cached_tokens > 0


@pytest.mark.parametrize("model", some(["windowed", "hybrid"], "hybrid"))
def test_a_prompt_served_alone_is_kept_before_its_answer(
    model: str, models: dict[str, Path], ours: LmServer, theirs: LmServer
) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Alone?"}]
    options = {"temperature": 0.8, "seed": 3, "max_tokens": 100}
    first, again = (ask(ours, models[model], messages, **options) for _ in range(2))
    assert again.cached_tokens == again.prompt_tokens - 1
    assert first.text == again.text == ask(theirs, models[model], messages, **options).text


def test_a_draft_model_restores_both_caches(
    models: dict[str, Path], ours: LmServer, theirs: LmServer
) -> None:
    """Greedy speculation gives the texts of the model alone. (Upstream's server does not, from
    the second turn on: its cache lacks the last token of the key that it is kept under.)"""
    drafted = {"extra_body": {"draft_model": str(models["draft"])}}
    mine = converse(ours, models["dense"], "drafts", **drafted)
    alone = converse(theirs, models["dense"], "drafts")
    assert [turn.text for turn in mine] == [turn.text for turn in alone]
    assert mine[2].cached_tokens > mine[1].prompt_tokens


@pytest.mark.parametrize("model", some(["thinking", "thinking-hybrid"], "thinking"))
def test_a_template_that_strips_reasoning_still_shares_the_rest(
    model: str, models: dict[str, Path], ours: LmServer, theirs: LmServer
) -> None:
    mine, other = ([], [])
    for server, said in ((ours, mine), (theirs, other)):
        messages = [{"role": "system", "content": SYSTEM}]
        for number in range(3):
            messages.append({"role": "user", "content": f"Puzzle {number}?"})
            said.append(ask(server, models[model], messages))
            messages.append({"role": "assistant", "content": f"hm, hm</think>It is {number}."})
    assert_same_but_cached_more(mine, other)
    # What was asked before is shared; what was thought about it is not.
    assert mine[2].cached_tokens >= mine[1].prompt_tokens - len("assistant\n") - 4


@pytest.mark.nightly
@pytest.mark.skipif(BEFORE_0_32, reason="mlx-lm: its server has no --kv-bits")
def test_quantised_kv(
    models: dict[str, Path], forks: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flags = ["--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "300"]
    flags += ["--model", str(models["wide"])]
    home = tmp_path_factory.mktemp("q")
    mine, other = (serve(home, *flags, forked=True) for serve in (serve_ours, serve_upstream))
    try:
        said = converse(mine, models["wide"], "bits", turns=4)
        assert_same_but_cached_more(said, converse(other, models["wide"], "bits", turns=4))
        # The chat passes the length at which caches are packed.
        assert said[0].prompt_tokens < 300 < said[3].prompt_tokens
        assert said[3].cached_tokens > said[2].prompt_tokens
        assert mine.stop() == 0
        mine = serve_ours(home, *flags, forked=True)
        again = converse(mine, models["wide"], "bits", turns=4)
        assert [turn.text for turn in again] == [turn.text for turn in said]
        assert again[3].cached_tokens >= said[3].cached_tokens
    finally:
        mine.kill()
        other.kill()
