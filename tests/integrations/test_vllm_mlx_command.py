"""`omlx-cache run vllm-mlx`: what is passed on to the server's own command, and what is not."""

import sys
from types import SimpleNamespace

import pytest

from omlx_cache.integrations.vllm_mlx import launch


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What its own command, which is not installed here, was called with."""
    seen: list[list[str]] = []
    its_own = SimpleNamespace(main=lambda: seen.append(sys.argv))
    monkeypatch.setitem(sys.modules, "vllm_mlx", SimpleNamespace(cli=its_own))
    monkeypatch.setitem(sys.modules, "vllm_mlx.cli", its_own)
    monkeypatch.setattr(sys, "argv", ["python"])
    return seen


@pytest.mark.parametrize(
    "arguments", [["serve", "--help"], ["serve", "m", "-h"], ["serve", "m", launch.BATCHING]]
)
def test_a_request_for_help_is_answered_by_the_server(
    arguments: list[str], passed_on: list[list[str]]
) -> None:
    launch.main(arguments)
    assert passed_on == [["vllm-mlx", *arguments]]


def test_a_mode_that_keeps_nothing_is_refused(passed_on: list[list[str]]) -> None:
    with pytest.raises(SystemExit, match="add --continuous-batching"):
        launch.main(["serve", "m"])
    assert not passed_on
