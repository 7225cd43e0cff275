"""The trace of requests: private, bounded, without text, and never in the way."""

import base64
import json
import logging
import os
import stat
from pathlib import Path

import pytest

from omlx_cache.requests.trace import BLOCK_BYTES, RequestTrace
from omlx_cache_storage.keys import KeyChain, as_tokens, namespace_digest

NAMESPACE = namespace_digest({"model": "a"})


def _chain(count: int = 64, first: int = 0) -> KeyChain:
    return KeyChain(NAMESPACE, as_tokens(list(range(first, first + count))), 16)


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def block_names(text: str) -> list[bytes]:
    names = base64.b64decode(text, validate=True)
    return [names[i : i + BLOCK_BYTES] for i in range(0, len(names), BLOCK_BYTES)]


def test_a_file_is_this_user_s_alone_whatever_the_mask_and_its_mode_before(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    before = os.umask(0)
    try:
        for at in (1.0, 2.0):
            trace = RequestTrace(path)
            trace.add(at, _chain(), 64, 0)
            trace.close(30)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.chmod(0o644)
    finally:
        os.umask(before)
    assert len(_lines(path)) == 4


def test_names_are_those_of_no_key_and_others_in_each_part(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for _ in range(2):
        trace = RequestTrace(path)
        trace.add(1.0, _chain(), 64, 0)
        trace.add(2.0, _chain(80), 80, 0)
        trace.close(30)
    head, first, second, other_head, other, _ = _lines(path)
    assert head["part"] == first["part"] != other_head["part"] == other["part"]
    names, longer = (block_names(str(line["blocks"])) for line in (first, second))
    assert longer[:4] == names
    assert not set(names) & set(block_names(str(other["blocks"])))
    keys = [_chain().key(end) for end in (16, 32, 48, 64)]
    assert not {key[: len(names[0])] for key in keys} & set(names)
    assert NAMESPACE.hex()[:12] not in path.read_text()


def test_a_full_file_grows_no_more_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace"
    trace = RequestTrace(path, limit_bytes=600)
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            trace.add(float(number), _chain(), 64, 0)
        trace.close(30)
    assert 0 < path.stat().st_size <= 600
    assert len(_lines(path)) < 21
    assert len([r for r in caplog.records if "trace" in r.message]) == 1


@pytest.mark.parametrize("what", ["directory", "link", "pipe", "missing"])
def test_what_is_no_file_of_this_user_s_is_left_alone_and_nothing_raises(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace"
    other = tmp_path / "other"
    other.write_text("mine")
    if what == "directory":
        path.mkdir()
    elif what == "link":
        path.symlink_to(other)
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path = tmp_path / "nowhere" / "trace"
    trace = RequestTrace(path)
    with caplog.at_level(logging.WARNING):
        trace.add(1.0, _chain(), 64, 0)
        trace.close(30)
    assert other.read_text() == "mine"
    assert len(caplog.records) == 1
