"""The list of commands that `omlx-cache --help` shows: in groups, by what they are for."""

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence

_GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    ("Serve, and fill the cache", ("serve", "run", "warm", "demo")),
    ("See what it does", ("top", "ps", "ping", "stats", "monitor", "why", "events")),
    ("See what it has", ("ls", "inspect", "config")),
    (
        "Look after the directory",
        ("quota", "pin", "unpin", "rm", "prune", "verify", "doctor", "export", "import"),
    ),
    ("Measure and plan", ("bench", "bench-kv", "size", "simulate")),
    ("For shells and programs", ("completion", "schema")),
)
_OTHERS = "Others"
_INDENT = 2
_WIDEST = 100


def overview(helps: Mapping[str, str]) -> str:
    """Return the commands with their help texts, none left out, as wide as the terminal."""
    width = min(_WIDEST, max(40, shutil.get_terminal_size().columns - 2))
    column = max(map(len, helps), default=0) + _INDENT + 2
    parts = []
    for title, names in _groups(helps):
        lines = [f"{title}:"]
        for name in names:
            shown = textwrap.fill(
                helps[name],
                width,
                initial_indent=f"{'':{_INDENT}}{name}".ljust(column),
                subsequent_indent=" " * column,
            )
            lines.append(shown)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _groups(helps: Mapping[str, str]) -> Iterator[tuple[str, Sequence[str]]]:
    placed = set()
    for title, wanted in _GROUPS:
        names = [name for name in wanted if name in helps]
        placed.update(names)
        if names:
            yield title, names
    others = [name for name in helps if name not in placed]
    if others:
        yield _OTHERS, others
