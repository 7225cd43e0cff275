"""Restarts, kills and signals: what a server promises to a conversation that outlives it, and what
it says of itself meanwhile."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.tinylm import LmServer

from .conftest import SYSTEM, Start, ask, cli, converse, stats, wait_until_durable

MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is there?"}]


def why_of(home: Path, *arguments: str) -> Any:
    return json.loads(cli(home, "why", *arguments, "--format", "json"))["requests"]


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_a_signal_finishes_the_answer_and_writes_everything(
    number: signal.Signals, start: Start, models: dict[str, Path]
) -> None:
    server = start("dense")
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Count."}]
    with server.client() as client:
        stream = client.chat.completions.create(
            model=str(models["dense"]),
            messages=messages,
            max_tokens=500,
            temperature=0,
            stream=True,
            logit_bias={"2": -100.0},
        )
        chunks = [next(stream)]
        server.process.send_signal(number)
        chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert server.wait() == 0, server.text()
    assert "Everything is on the disk" in server.text()
    again = ask(start("dense"), models["dense"], messages)
    assert again.cached_tokens == again.prompt_tokens - 1


def test_a_cancelled_stream_leaves_the_server_well(
    ours: LmServer, theirs: LmServer, models: dict[str, Path]
) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Cancel me."}]
    with ours.client() as client:
        stream = client.chat.completions.create(
            model=str(models["dense"]),
            messages=messages,
            max_tokens=2000,
            temperature=0,
            stream=True,
            logit_bias={"2": -100.0},
        )
        next(stream)
        stream.close()
    mine, other = (ask(server, models["dense"], messages) for server in (ours, theirs))
    assert mine.text == other.text
    # The prompt was prefilled, and its parts were stored, before the client left.
    assert mine.cached_tokens > 0


def test_stats_and_log_tell_what_was_restored(
    start: Start, home: Path, models: dict[str, Path]
) -> None:
    server = start("dense")
    converse(server, models["dense"], "numbers", turns=2)
    first = stats(home)["requests"]
    assert first["restored_hot_tokens"] > 0
    assert first["restored_cold_tokens"] == 0
    # Below nothing, where a busy machine restores more slowly than it computes.
    assert first["saved_seconds"] != 0
    # New text, and a turn that goes on from all that was stored: nothing was lost.
    assert first["misses"] == {}
    wait_until_durable(home)
    server.kill()
    server = start("dense")
    turns = converse(server, models["dense"], "numbers", turns=2)
    assert stats(home)["requests"]["restored_cold_tokens"] >= turns[0].prompt_tokens - 1
    assert server.stop() == 0
    line = f"{turns[0].prompt_tokens} tokens in, {turns[0].cached_tokens} restored (0 hot, "
    assert line in server.text()


@pytest.mark.parametrize("flags", some([[], ["--draft-model"]], []), ids=["alone", "draft"])
def test_a_request_served_alone_is_measured_too(
    flags: list[str], start: Start, home: Path, models: dict[str, Path]
) -> None:
    server = start("dense", *flags, *(str(models["draft"]) for _ in flags))
    # A seed is what mlx-lm serves alone.
    turn = ask(server, models["dense"], MESSAGES, seed=5)
    seen = stats(home)
    figures = seen["requests"]
    assert figures["prefilled_tokens"] == turn.prompt_tokens - turn.cached_tokens
    assert 0 < figures["prefill_seconds"] < seen["uptime_seconds"]
    assert list(figures["prefill_tokens_per_second"]) == ["dense"]


def one_run(start: Start, home: Path, model: Path, *flags: str) -> list[str]:
    """Start a server, ask it once, end it, and return what it logged, without dates and levels."""
    (home / "serve.log").unlink(missing_ok=True)
    server = start("dense", *flags)
    ask(server, model, MESSAGES, max_tokens=4)
    assert server.stop() == 0, server.text()
    return [line.partition(" - ")[2].partition(" - ")[2] for line in server.text().splitlines()]


def test_the_first_lines_name_the_model_and_what_was_found(
    models: dict[str, Path], home: Path, start: Start
) -> None:
    cold = home / "cold"
    first = one_run(start, home, models["dense"])
    assert first[0] == f"loading {models['dense']} ..."
    granted = "; memory 256 MiB, disk 1 GiB"
    assert re.fullmatch(f"no pages in {cold} yet{granted}", first[1])
    again = one_run(start, home, models["dense"])
    found = rf"(\d+) pages, [\d.]+ [KM]iB in {cold} \((\d+) of dense\){granted}"
    match = re.fullmatch(found, again[1])
    assert match, again
    assert match[1] == match[2]
    last = rf"Everything is on the disk: {cold} has {match[1]} pages, [\d.]+ [KM]iB\."
    assert re.fullmatch(last, again[-1])


def test_the_request_s_line_names_the_setting_that_is_too_small(
    models: dict[str, Path], start: Start
) -> None:
    server = start("dense", "--block-size", "16", "--cold-bytes", "160KiB")
    messages = [{"role": "user", "content": SYSTEM * 3}]
    turns = [ask(server, models["dense"], messages, max_tokens=4) for _ in range(2)]
    assert server.stop() == 0, server.text()
    assert min(turn.prompt_tokens for turn in turns) > 100
    text = server.text()
    assert text.count("cold_bytes (160 KiB) holds about ") == 1, "once for the model"
    requests = [line for line in text.splitlines() if " tokens in, " in line]
    assert "not on the disk (no_room: cold_bytes)" in requests[-1], "memory has all of it"
    assert "not kept" not in text.partition("cold_bytes (160 KiB)")[0]


def test_why_shows_the_place_in_words_and_the_log_has_no_text(
    home: Path, models: dict[str, Path], start: Start
) -> None:
    server = start("dense")
    assert cli(home, "why") == "no request yet\n"
    for day in (20, 21):
        system = {"role": "system", "content": f"Today is 2026-11-{day}. {SYSTEM}"}
        ask(server, models["dense"], [system, {"role": "user", "content": "What now?"}])
    said = cli(home, "why")
    assert "it differs from request 1 at token" in said
    assert "Today is 2026-11-20" in said
    assert "Today is 2026-11-21" in said
    assert "what helps: keep what changes" in said
    (told,) = why_of(home)
    assert told["reason"] == "diverged"
    assert told["model"] == "dense"
    assert told["explanation"]["here_text"] != told["explanation"]["there_text"]
    assert [one["number"] for one in why_of(home, "--last", "5")] == [1, 2]
    assert [one["reason"] for one in why_of(home, "1")] == ["new_text"]
    assert server.stop() == 0
    log = server.text()
    assert "request 2: " in log
    assert "(diverged: differs from request 1 at token " in log
    assert "Today is" not in log


def test_it_is_named_by_port_and_model_before_its_first_request(start: Start, home: Path) -> None:
    server = start("dense")
    port = server.url.rpartition(":")[2]
    pid = server.process.pid
    row = cli(home, "ps").splitlines()[1].split()
    assert row[:3] == [str(pid), "serve", f":{port}"]
    assert "dense" in row
    (asked,) = json.loads(cli(home, "ps", "--format", "json"))
    assert asked["models"] == ["dense"]
    assert asked["service"]["url"] == server.url
