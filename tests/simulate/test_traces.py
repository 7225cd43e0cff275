import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.requests.trace import FORMAT, RequestTrace
from omlx_cache.simulate.errors import SimulationError, TraceError
from omlx_cache.simulate.traces import read_traces
from omlx_cache_storage.keys import KeyChain, as_tokens, namespace_digest

SESSION = {
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


def _file(path: Path, *lines: Any, packed: bool = False) -> Path:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_a_session_s_blocks_are_joined_to_pages_that_name_their_prefix(
    tmp_path: Path, packed: bool
) -> None:
    trace = read_traces([_file(tmp_path / "t", SESSION, packed=packed)])
    workload = trace.workload(agents=1, block_size=256)
    first, second = workload.requests
    assert (first.at, second.at) == (0.0, 5.0)
    assert first.pages == [0, 1, 2, 3]
    # The fourth page begins alike and ends otherwise; the fifth is new.
    assert second.pages == [0, 1, 2, 4, 5]
    assert second.asked == 5
    assert workload.references == 9


def test_sessions_of_equal_tools_share_them_and_begin_when_a_place_is_free(tmp_path: Path) -> None:
    sessions = [SESSION | {"id": name} for name in "abc"]
    trace = read_traces([_file(tmp_path / "t", *sessions)])
    alone = trace.workload(agents=1, block_size=256)
    assert [r.at for r in alone.requests] == [0.0, 5.0, 65.0, 70.0, 130.0, 135.0]
    assert alone.requests[2].pages[:2] == [0, 1]
    assert not set(alone.requests[2].pages[2:]) & set(alone.requests[0].pages)
    together = trace.workload(agents=2, block_size=256)
    assert [r.at for r in together.requests] == [0.0, 0.0, 5.0, 5.0, 65.0, 70.0]


def test_a_named_order_is_another_one_and_always_the_same(tmp_path: Path) -> None:
    sessions = [SESSION | {"id": str(n), "tool_tokens": 0, "system_tokens": 0} for n in range(8)]
    for number, session in enumerate(sessions):
        request = {"t": 0.0, "in": 1000 + number, "out": 0, "runs": [1, 15]}
        session["requests"] = [request]
    trace = read_traces([_file(tmp_path / "t", *sessions)])

    def order(name: str) -> list[int]:
        found = trace.workload(agents=1, block_size=256, shuffle=name).requests
        return [request.tokens_in for request in found]

    assert order("") == sorted(order("one"))
    assert order("one") == order("one") != order("two")


def test_a_chat_s_blocks_are_split_to_smaller_pages_and_joined_to_larger_ones(
    tmp_path: Path,
) -> None:
    other = CHAT | {"timestamp": 9000, "hash_ids": [7, 8, 10], "input_length": 1536}
    trace = read_traces([_file(tmp_path / "t", other, CHAT)])
    small = trace.workload(agents=1, block_size=256)
    assert [r.at for r in small.requests] == [0.0, 6.5], "in the order of their times"
    assert small.requests[0].pages == [0, 1, 2, 3], "complete pages of 1,100 tokens"
    assert small.requests[1].pages == [0, 1, 2, 3, 4, 5]
    large = trace.workload(agents=1, block_size=1024)
    assert [r.pages for r in large.requests] == [[0], [0]]
    with pytest.raises(SimulationError, match="multiple or a divisor of 512"):
        trace.workload(agents=1, block_size=384)


def test_two_files_of_requests_are_one_by_time_and_share_no_page(tmp_path: Path) -> None:
    files = [_file(tmp_path / name, CHAT) for name in "ab"]
    workload = read_traces(files).workload(agents=1, block_size=None)
    assert workload.pages == 8
    with pytest.raises(TraceError, match="two kinds"):
        read_traces([files[0], _file(tmp_path / "c", SESSION)])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([SESSION, "{"], "line 2"),
        ([SESSION, SESSION | {"requests": 5}], "line 2: requests is not a list"),
        ([SESSION, {"id": "b"}], "line 2: it has no 'requests'"),
        ([SESSION | {"block_tokens": 0}], "line 1: block_tokens is '0'"),
        ([SESSION | {"requests": [{"t": 1, "in": 1, "out": 1, "runs": [1]}]}], "line 1: runs"),
        ([SESSION | {"requests": [{"t": 1, "in": 1, "out": 1, "runs": [1, 10**12]}]}], "runs"),
        ([CHAT, CHAT | {"hash_ids": ["x"]}], "line 2: hash_ids"),
        ([CHAT, CHAT | {"timestamp": -1}], "line 2: timestamp"),
        ([CHAT, CHAT | {"input_length": True}], "line 2: input_length"),
        ([{"something": 1}], "line 1: expected a JSON object a line"),
        (["[1, 2]"], "line 1: expected a JSON object a line"),
        ([{FORMAT: 99}], "line 1: version 99"),
        ([{FORMAT: 1}, {"part": "p", "at": 1, "in": 1, "out": 1, "block_size": 16, "blocks": "!"}],
         "line 2: blocks are not base64"),
        ([], "no request"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_line(
    tmp_path: Path, lines: Sequence[Any], said: str
) -> None:
    path = _file(tmp_path / "trace.jsonl", *lines)
    with pytest.raises(TraceError) as caught:
        read_traces([path])
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_ends_too_early_is_said_to(tmp_path: Path) -> None:
    path = _file(tmp_path / "t.gz", *[SESSION] * 50, packed=True)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match="after line"):
        read_traces([path])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    namespace = namespace_digest({"a": 1})
    trace = RequestTrace(tmp_path / "own")
    prompt = list(range(100))
    trace.note_size(namespace, 4096)
    for at, tokens, count in ((10.0, prompt, 80), (20.0, [*prompt[:40], *range(500, 540)], 80)):
        trace.add(at, KeyChain(namespace, as_tokens(tokens), 16), count, len(tokens) - count)
    other = namespace_digest({"a": 2})
    trace.add(30.0, KeyChain(other, as_tokens(prompt), 16), 100, 0, "turn")
    trace.close(30)
    found = read_traces([tmp_path / "own"]).workload(agents=1, block_size=None)
    first, second, third = found.requests
    assert (first.at, second.at, third.at) == (0.0, 10.0, 20.0)
    assert first.pages == [0, 1, 2, 3, 4, 5], "those of the answer too"
    assert (first.asked, first.tokens_in, first.tokens_out) == (5, 80, 20)
    assert second.pages == [0, 1, 6, 7, 8]
    assert not set(third.pages) & {*first.pages, *second.pages}, "another model's"
    assert third.ended == "turn"
    assert (found.block_size, found.bytes_per_token) == (16, 4096)


@pytest.mark.parametrize("stored_first", [True, False])
def test_an_answer_that_was_stored_apart_is_its_request_s(
    tmp_path: Path, stored_first: bool
) -> None:
    namespace = namespace_digest({"a": 1})
    trace = RequestTrace(tmp_path / "own")
    tokens = list(range(100))

    def stored() -> None:
        trace.add_stored(KeyChain(namespace, as_tokens(tokens), 16), 100)

    # Of the prompt, which says nothing of the answer.
    trace.add_stored(KeyChain(namespace, as_tokens(tokens[:50]), 16), 50)
    if stored_first:
        stored()
    trace.add(10.0, KeyChain(namespace, as_tokens(tokens[:50]), 16), 50, 50)
    if not stored_first:
        stored()
    trace.add(20.0, KeyChain(namespace, as_tokens(tokens[:50]), 16), 50, 0)
    trace.close(30)
    first, second = read_traces([tmp_path / "own"]).workload(agents=1, block_size=None).requests
    assert (first.pages, first.asked) == ([0, 1, 2, 3, 4, 5], 3)
    assert (second.pages, second.asked) == ([0, 1, 2], 3)
