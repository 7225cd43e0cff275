"""`OMLX_CACHE_LOG_LEVEL` and `--log-level`: what is shown of a server, and of its packages."""

from pathlib import Path

import pytest

from kit.examples import some
from kit.tinylm import serve_ours

from .conftest import ask

OURS = "loading "
UPSTREAMS = "Prompt processing progress"
DETAILS = "Incoming Request Body"


@pytest.mark.parametrize(
    ("flags", "variable", "shown"),
    some(
        [
            ((), None, {OURS}),
            (("--verbose",), None, {OURS, UPSTREAMS}),
            ((), "warning", set()),
            ((), "debug", {OURS, "GET /health"}),
            (("--log-level", "INFO"), "error", {OURS}),
            (("--log-level", "DEBUG"), "error", {OURS, UPSTREAMS, "GET /health", DETAILS}),
            (("--log-level", "ERROR"), "debug", set()),
        ],
        ((), None, {OURS}),
        (("--verbose",), None, {OURS, UPSTREAMS}),
    ),
)
def test_the_flag_wins_then_the_variable_then_info(
    flags: tuple[str, ...],
    variable: str | None,
    shown: set[str],
    models: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    forks: None,
) -> None:
    variables = {"OMLX_CACHE_LOG_LEVEL": variable} if variable else {}
    home = tmp_path_factory.mktemp("level")
    arguments = ("--model", str(models["dense"]), *flags)
    server = serve_ours(home, *arguments, forked=True, **variables)
    try:
        ask(server, models["dense"], [{"role": "user", "content": "Hello?"}], max_tokens=2)
        assert server.stop() == 0, server.text()
    finally:
        server.kill()
    every = {OURS, UPSTREAMS, "GET /health", DETAILS}
    assert {text for text in every if text in server.text()} == shown
