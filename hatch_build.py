"""The package's long description: the README with links that work where its files are not.

A package index and a wheel show the README without the files beside it. With a `Repository` under
`[project.urls]` its relative links lead there; without one they are their text, and pictures what
they say they show.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

README = "README.md"
LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)\s]+)\)")
PROGRAM = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def published(text: str, repository: str | None) -> str:
    """Return a document whose relative links lead to a repository, or are no links."""
    parts = PROGRAM.split(text)
    # Every second part is a program, and in programs brackets are brackets.
    parts[::2] = [LINK.sub(lambda found: _link(found, repository), part) for part in parts[::2]]
    return "".join(parts)


def _link(found: "re.Match[str]", repository: str | None) -> str:
    picture, words, target = found.groups()
    if "://" in target or target.startswith("#"):
        return found[0]
    if repository is None:
        return f"*{words}*" if picture else words
    kind = "raw" if picture else "blob"
    return f"{picture}[{words}]({repository.rstrip('/')}/{kind}/HEAD/{target})"


class LongDescription(MetadataHookInterface):
    """Sets `readme`, which is dynamic for this reason alone."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / README).read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": published(text, repository),
        }
