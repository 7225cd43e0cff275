#!/usr/bin/env python3
"""Counts the words, pages and long sentences of the documents, and fails above a limit.

    scripts/words.py [ROOT]
    scripts/words.py --long FILE...     print a file's sentences of more than 25 words

LIMITS has the most that there may be. A page's words are those of `wc -w`; README's leave out code
blocks and tables. A sentence ends at `.`, `!`, `?` or `:`, and where its paragraph or list item
ends. Code blocks, tables, headings and targets of links are no part of it, a name in backquotes is
one word, and a dash is none.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

GENERATED = {"commands.md", "configuration.md"}
"""Reference pages of `docs/`, one of them made from the code: only their sentences count."""
FIRST = ("README.md", "docs/quickstart.md", "docs/servers.md", "docs/troubleshooting.md")
"""What a new user reads."""

LONG = 30
WANTED = 25
"""Words of a sentence, at most: few have more than LONG, and none needs more than WANTED."""

LIMITS = {
    "words of README.md, without code and tables": 900,
    "words of docs": 36000,
    "words of docs and decisions": 44000,
    "pages of docs": 16,
    "words of the longest page": 3500,
    "words that a new user reads": 8000,
    "long sentences, of 1,000": 20,
}

BLOCK = re.compile(r"^ *(```|~~~).*?^ *\1 *$|<!--.*?-->|^ *\|.*?$|!\[[^]]*\]\([^)]*\)", re.S | re.M)
"""A block of code, a comment, a row of a table, a picture with its words."""
NAME = re.compile(r"(`+)[^`]+\1")
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
BORDER = re.compile(r"\n\s*\n|^#.*$|^\s*(?:[-*+]|\d+\.)\s+", re.M)
"""What lies between paragraphs, headings among them, and what begins a list item."""
END = re.compile(r"(?<=[.!?:])[)\"'*_]*\s+")


def words(text: str) -> int:
    """Return how many words of a text have a letter or a digit."""
    return sum(any(map(str.isalnum, part)) for part in text.split())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a document, each on one line."""
    prose = LINK.sub(r"\1", NAME.sub("`name`", BLOCK.sub("\n\n", text)))
    for paragraph in BORDER.split(prose):
        for sentence in END.split(paragraph):
            if words(sentence):
                yield " ".join(sentence.split())


def count(root: Path) -> dict[str, int]:
    """Return what there is of everything that LIMITS names."""
    docs = root / "docs"
    texts = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in (root / "README.md", *sorted(docs.rglob("*.md")))
    }
    readme = BLOCK.sub("", texts["README.md"])
    length = {name: len(text.split()) for name, text in texts.items()}
    decisions = {name for name in texts if name.startswith("docs/decisions/")}
    pages = {name for name in texts if name.startswith("docs/")} - decisions
    written = {name: length[name] for name in pages if Path(name).name not in GENERATED}
    counted = [words(each) for each in chain.from_iterable(map(sentences, texts.values()))]
    counts = (
        len(readme.split()),
        sum(written.values()),
        sum(written.values()) + sum(length[name] for name in decisions),
        len(pages - {"docs/README.md"}),
        max(written.values(), default=0),
        sum(length.get(name, 0) for name in FIRST),
        round(1000 * sum(each > LONG for each in counted) / max(1, len(counted))),
    )
    return dict(zip(LIMITS, counts, strict=True))


def show_long(path: Path) -> None:
    """Print the sentences of a document that have more words than wanted."""
    for sentence in sentences(path.read_text(encoding="utf-8")):
        if words(sentence) > WANTED:
            print(f"{path}: {words(sentence)} words: {sentence}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--long", nargs="+", type=Path, metavar="FILE", default=[])
    chosen = parser.parse_args(arguments)
    for path in chosen.long or [chosen.root / "README.md"]:
        if not path.is_file():
            parser.error(f"there is no file {path}")
    for path in chosen.long:
        show_long(path)
    if chosen.long:
        return 0
    risen = False
    for name, found in count(chosen.root).items():
        print(f"{found:6} {name}, at most {LIMITS[name]}")
        risen |= found > LIMITS[name]
    if risen:
        print("too much: make it shorter (scripts/words.py --long FILE helps)", file=sys.stderr)
    return int(risen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
