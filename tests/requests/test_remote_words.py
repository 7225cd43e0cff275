"""What a request is told of the store that machines share."""

import pytest

from omlx_cache.requests.advice import advice
from omlx_cache.requests.words import sentence, why
from omlx_cache.status.remote_metrics import REASONS


@pytest.mark.parametrize("word", sorted(REASONS))
def test_every_reason_of_a_store_has_words_and_what_helps(word: str) -> None:
    assert "store that machines share" in why({"reason": word})
    assert word not in why({"reason": word})
    assert advice({"reason": word})


def test_a_detail_follows_the_words() -> None:
    assert why({"reason": "remote_timeout", "detail": "0.5 s"}).endswith("wait for it (0.5 s)")


@pytest.mark.parametrize(
    ("cold", "remote", "where"),
    [
        (0, 0, "memory"),
        (900, 0, "SSD"),
        (0, 900, "other machines"),
        (100, 0, "100 of them from SSD"),
        (0, 300, "300 of them from other machines"),
        (100, 300, "100 of them from SSD, 300 from other machines"),
        (600, 300, "600 of them from SSD, 300 from other machines"),
    ],
)
def test_where_tokens_came_from_is_said(cold: int, remote: int, where: str) -> None:
    request = {"cold_tokens": cold, "remote_tokens": remote, "prompt_tokens": 1000}
    said = sentence({"tokens": 1000, "restored": 900}, request)
    assert f"900 restored ({where})" in said
