"""What a request is told of the store that machines share."""

import pytest

from omlx_cache.reasons import described
from omlx_cache.requests.explanation import Explanation, RequestRecord, sentence, why
from omlx_cache.status.metrics import REMOTE_REASONS as REASONS


@pytest.mark.parametrize("word", sorted(REASONS))
def test_every_reason_of_a_store_has_words_and_what_helps(word: str) -> None:
    told = Explanation(word, 1000, 0)
    assert "store that machines share" in why(told)
    assert word not in why(told)
    assert described(word).remedy


def test_a_detail_follows_the_words() -> None:
    told = Explanation("remote_timeout", 1000, 0, detail="0.5 s")
    assert why(told).endswith("wait for it (0.5 s)")


@pytest.mark.parametrize(
    ("cold", "remote", "where"),
    [
        (0, 0, "memory"),
        (900, 0, "SSD"),
        (0, 900, "other machines"),
        (100, 0, "100 from SSD, 800 from memory"),
        (0, 300, "300 from other machines, 600 from memory"),
        (100, 300, "100 from SSD, 300 from other machines, 500 from memory"),
        (600, 300, "600 from SSD, 300 from other machines"),
    ],
)
def test_where_tokens_came_from_is_said(cold: int, remote: int, where: str) -> None:
    record = RequestRecord(1, 0.0, "", "m", "", 1000, 900, cold, remote_tokens=remote)
    said = sentence(Explanation(None, 1000, 900), record)
    assert f"900 restored ({where})" in said
