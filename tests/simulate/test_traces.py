"""Traces are read as what they say, and what is none is told in words, soon, in little memory."""

import gzip
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.requests.trace import FORMAT, RequestTrace
from omlx_cache.simulate import traces
from omlx_cache.simulate.traces import SimulationError, read_traces, workload
from omlx_cache_storage.keys import KeyChain, as_tokens, namespace_digest

SESSION: dict[str, Any] = {
    "id": "a",
    "block_tokens": 64,
    "tool_tokens": 256,
    "system_tokens": 256,
    "requests": [
        {"t": 0.0, "in": 1030, "out": 9, "runs": [1, 16]},
        {"t": 5.0, "in": 1300, "out": 9, "runs": [1, 15, 40, 5]},
    ],
}
CHAT = {"timestamp": 2500, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
OWN = {"part": "p", "at": 1, "in": 1, "out": 1, "block_size": 16, "blocks": "!"}


def _file(path: Path, *lines: Any, packed: bool = False) -> Path:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_sessions_share_their_tools_and_begin_when_a_place_is_free(
    tmp_path: Path, packed: bool
) -> None:
    sessions = [SESSION | {"id": name} for name in "abc"]
    traced = read_traces([_file(tmp_path / "t", *sessions, packed=packed)])
    alone = workload(traced, agents=1, block_size=256)
    assert [r.at for r in alone.requests] == [0.0, 5.0, 65.0, 70.0, 130.0, 135.0]
    first, second, third, *_ = alone.requests
    # Blocks are joined to pages that name their prefix: the fourth begins alike and ends otherwise.
    assert (first.pages, second.pages) == ([0, 1, 2, 3], [0, 1, 2, 4, 5])
    assert (first.asked, second.asked, alone.references) == (4, 5, 27)
    assert third.pages[:2] == [0, 1]
    assert not set(third.pages[2:]) & set(first.pages)
    together = workload(traced, agents=2, block_size=256)
    assert [r.at for r in together.requests] == [0.0, 0.0, 5.0, 5.0, 65.0, 70.0]


def test_a_named_order_is_another_one_and_always_the_same(tmp_path: Path) -> None:
    sessions = [
        SESSION | {"id": str(n), "requests": [{"t": 0.0, "in": 1000 + n, "runs": [1, 15]}]}
        for n in range(8)
    ]
    traced = read_traces([_file(tmp_path / "t", *sessions)])
    plain, one, again, two = (
        [request.tokens_in for request in workload(traced, agents=1, shuffle=name).requests]
        for name in ("", "one", "one", "two")
    )
    assert plain == sorted(one)
    assert one == again != two


def test_a_chats_blocks_are_split_to_smaller_pages_and_joined_to_larger_ones(
    tmp_path: Path,
) -> None:
    other = CHAT | {"timestamp": 9000, "hash_ids": [7, 8, 10], "input_length": 1536}
    path = _file(tmp_path / "t", other, CHAT)
    small = workload(read_traces([path]), agents=1, block_size=256)
    assert [r.at for r in small.requests] == [0.0, 6.5], "in the order of their times"
    assert small.requests[0].pages == [0, 1, 2, 3], "complete pages of 1,100 tokens"
    assert small.requests[1].pages == [0, 1, 2, 3, 4, 5]
    large = workload(read_traces([path]), agents=1, block_size=1024)
    assert [r.pages for r in large.requests] == [[0], [0]]
    with pytest.raises(SimulationError, match="multiple or a divisor of 512"):
        workload(read_traces([path]), agents=1, block_size=384)
    two = [_file(tmp_path / name, CHAT) for name in "ab"]
    assert workload(read_traces(two), agents=1).pages == 8, "files share no page"
    with pytest.raises(SimulationError, match="two kinds"):
        read_traces([path, _file(tmp_path / "c", SESSION)])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([SESSION, "{"], "line 2"),
        ([SESSION, SESSION | {"requests": 5}], "line 2"),
        ([SESSION, {"id": "b"}], "line 2: expected a JSON object a line"),
        ([SESSION | {"block_tokens": 0}], "line 1: block_tokens is '0'"),
        ([SESSION | {"requests": [{"t": 1, "in": 1, "runs": [1]}]}], "line 1: runs"),
        ([SESSION | {"requests": [{"t": 1, "in": 1, "runs": [1, 10**12]}]}], "runs"),
        ([SESSION | {"requests": [{"t": 1, "runs": [1, 1]}]}], "line 1: it has no 'in'"),
        ([CHAT, CHAT | {"hash_ids": ["x"]}], "line 2: hash_ids"),
        ([CHAT, CHAT | {"timestamp": -1}], "line 2: timestamp"),
        ([CHAT, CHAT | {"timestamp": 1e308}], "line 2: timestamp is '1e+308', not a time"),
        ([CHAT, CHAT | {"input_length": True}], "line 2: input_length"),
        (["[1, 2]"], "line 1: expected a JSON object a line"),
        (["7"], "line 1"),
        ([{FORMAT: 99}], "line 1: version 99"),
        ([{FORMAT: 1}, OWN], "line 2"),
        ([], "no request"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(
    tmp_path: Path, lines: Sequence[Any], said: str
) -> None:
    path = _file(tmp_path / "trace.jsonl", *lines)
    with pytest.raises(SimulationError) as caught:
        read_traces([path])
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_packed_files_that_are_torn_damaged_or_endless_are_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path / "t.gz", *(CHAT | {"timestamp": n} for n in range(500)), packed=True)
    whole = path.read_bytes()
    damaged = whole[:150] + bytes(byte ^ 0x5A for byte in whole[150:200]) + whole[200:]
    for content in (whole[:-20], damaged):
        path.write_bytes(content)
        with pytest.raises(SimulationError, match=r"t\.gz, after line"):
            read_traces([path])
    monkeypatch.setattr(traces, "MAX_LINE_BYTES", 1 << 20)
    path.write_bytes(gzip.compress(b" " * (8 << 20)))
    with pytest.raises(SimulationError, match="line 1: it is longer than any request"):
        read_traces([path])


def test_a_trace_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps(CHAT) + "\n",))
    writer.start()
    assert len(read_traces([pipe])) == 1
    writer.join(10)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    namespace, other = (namespace_digest({"a": n}) for n in (1, 2))
    trace = RequestTrace(tmp_path / "own")
    prompt = list(range(100))
    trace.note_size(namespace, 4096)
    for at, tokens in ((10.0, prompt), (20.0, [*prompt[:40], *range(500, 540)])):
        trace.add(at, KeyChain(namespace, as_tokens(tokens), 16), 80, len(tokens) - 80)
    trace.add(30.0, KeyChain(other, as_tokens(prompt), 16), 100, 0, "turn")
    trace.close(30)
    found = workload(read_traces([tmp_path / "own"]), agents=1)
    first, second, third = found.requests
    assert [request.at for request in found.requests] == [0.0, 10.0, 20.0]
    assert first.pages == [0, 1, 2, 3, 4, 5], "those of the answer too"
    assert (first.asked, first.tokens_in) == (5, 80)
    assert second.pages == [0, 1, 6, 7, 8]
    assert not set(third.pages) & {*first.pages, *second.pages}, "another model's"
    assert third.ended == "turn"
    assert (found.block_size, found.bytes_per_token) == (16, 4096)


@pytest.mark.parametrize("stored_first", [True, False])
def test_an_answer_that_was_stored_apart_is_its_requests(
    tmp_path: Path, stored_first: bool
) -> None:
    namespace = namespace_digest({"a": 1})
    trace = RequestTrace(tmp_path / "own")
    whole = KeyChain(namespace, as_tokens(range(100)), 16)
    prompt = KeyChain(namespace, as_tokens(range(50)), 16)
    # Of the prompt, which says nothing of the answer.
    trace.add_stored(prompt, 50)
    if stored_first:
        trace.add_stored(whole, 100)
    trace.add(10.0, prompt, 50, 50)
    if not stored_first:
        trace.add_stored(whole, 100)
    trace.add(20.0, prompt, 50, 0)
    trace.close(30)
    first, second = workload(read_traces([tmp_path / "own"]), agents=1).requests
    assert (first.pages, first.asked) == ([0, 1, 2, 3, 4, 5], 3)
    assert (second.pages, second.asked) == ([0, 1, 2], 3)
