"""Each command line and each flag in the documents is one that the parser knows."""

import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from kit.trees import ROOT
from omlx_cache_daemon import cli
from omlx_cache_daemon.parsing import parse
from omlx_cache_daemon.service import main as service

DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
OF_OTHERS = {
    "format.md": {"--exclude-caches"},
    "remote.md": {"--machines"},
}
"""Flags of other programs, by page. The pages of other servers name those of the servers."""
PAGES_OF_SERVERS = {"servers.md"}


@cache
def _flags(command: str) -> frozenset[str]:
    """Return the flags that the help of a command shows, or of `omlx-cached`."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        if command == "omlx-cached":
            service.main(["--help"])
        else:
            cli.main([command, "--help-all" if command == "serve" else "--help"])
    found = frozenset(_flags_in(said.getvalue()))
    assert "--help" in found, command
    return found


def _flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def _lines(document: Path) -> list[str]:
    """Return each line that a shell is to take."""
    text = document.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def _spans(document: Path) -> list[str]:
    """Return what stands between backquotes in prose and tables."""
    text = document.read_text(encoding="utf-8")
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def _examples(texts: list[str]) -> list[str]:
    """Return each command line in texts, up to its pipe, redirection or comment."""
    pattern = r"(?:^|\$ |\| |bin/|ssh \w+ |<\()(omlx-cached?(?: [^;&<>#)]*)?)"
    found = [hit for text in texts for hit in re.findall(pattern, text)]
    # A pipe has spaces around it; the choice in `stats [--all\|--watch]` has none.
    return [one.partition(" | ")[0].strip() for one in found]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_flag_is_known_to_its_command(document: Path) -> None:
    for example in _examples([*_lines(document), *_spans(document)]):
        program, *words = example.split()
        command = program if program == "omlx-cached" else next(iter(words), "")
        if command == "omlx-cached":
            unit, _serve, arguments = example.partition(" --serve ")
            assert _flags_in(unit) <= _flags(command), example
            assert _flags_in(arguments) <= _flags("serve"), example
        elif command in cli.command_names() and command != "run":
            assert _flags_in(example) <= _flags(command), example
    if document.name in PAGES_OF_SERVERS:
        return
    known = set().union(*map(_flags, [*cli.command_names(), "omlx-cached"]))
    alone = {flag for span in _spans(document) if span.startswith("--") for flag in _flags_in(span)}
    assert alone <= known | OF_OTHERS.get(document.name, set())


def test_each_typed_command_line_is_parsed() -> None:
    typed = [
        shlex.split(example)[1:]
        for document in DOCUMENTS
        for example in _examples(_lines(document))
        if example.startswith("omlx-cache ")
    ]
    assert len(typed) > 30
    for words in typed:
        parse(words)
