"""What a server says of itself from its first second to its last."""

import re
from pathlib import Path

import pytest

from kit.tinylm import Server, serve_ours

from .conftest import SYSTEM, ask

MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is there?"}]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, forks: None) -> Path:
    return tmp_path_factory.mktemp("words")


def said_by(server: Server) -> list[str]:
    """End a server and return what it logged, without dates and levels."""
    assert server.stop() == 0, server.text()
    return [line.partition(" - ")[2].partition(" - ")[2] for line in server.text().splitlines()]


def one_run(home: Path, model: Path, *flags: str) -> list[str]:
    """Start a server, ask it once, and return the lines of this run."""
    (home / "serve.log").unlink(missing_ok=True)
    server = serve_ours(home, "--model", str(model), *flags, forked=True)
    try:
        ask(server, model, MESSAGES, max_tokens=4)
        return said_by(server)
    finally:
        server.kill()


def test_the_first_lines_name_the_model_and_what_was_found(
    models: dict[str, Path], home: Path
) -> None:
    cold = home / "cold"
    first = one_run(home, models["dense"])
    assert first[0] == f"loading {models['dense']} ..."
    # A disk that takes more than half a second to say how much is free is not waited for.
    granted = r"; memory 256 MiB, disk 1 GiB(?: of [\d.]+ [GT]iB free)?"
    assert re.fullmatch(f"no pages in {cold} yet{granted}", first[1])
    again = one_run(home, models["dense"])
    found = rf"(\d+) pages, [\d.]+ [KM]iB in {cold}, oldest \d+ \w+ \((\d+) of dense\){granted}"
    match = re.fullmatch(found, again[1])
    assert match, again
    assert match[1] == match[2]
    last = rf"Everything is on the disk: {cold} has {match[1]} pages, [\d.]+ [KM]iB\."
    assert re.fullmatch(last, again[-1])


def test_a_server_without_a_disk_says_that_nothing_is_on_it(
    models: dict[str, Path], home: Path
) -> None:
    lines = one_run(home, models["dense"], "--hot-cache-only")
    assert "nothing is kept on the disk (hot_cache_only); memory 256 MiB" in lines
    assert re.fullmatch(
        r"Nothing is on the disk: hot_cache_only\. \d+ pages, [\d.]+ KiB, \d+ tokens end with this "
        r"process\.",
        lines[-1],
    )
