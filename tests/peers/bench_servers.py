"""Other projects' servers with their own cache and with this one, asked over HTTP, in one run.

    python tests/peers/bench_servers.py NAME=PYTHON...

NAME is what `omlx-cache run` takes, PYTHON an interpreter whose environment has that server. Each
mode serves one conversation; then it ends, and starts again on the same directories for the last
request. Printed as Markdown: seconds to
the first token, resident memory of the server's processes, bytes on the disk, and how many answers
are those of the server without a cache.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("", "daemon", "storage", "tests", "tests/peers")]

from serving import NO_CACHE, OURS, OURS_SAYS, PEERS, PeerServer  # noqa: E402

from kit.tinylm import make_model  # noqa: E402

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 32_768,
}
"""Large enough that a prompt takes longer to compute than a request takes otherwise."""
LETTERS = "abcdefghijklmnopqrstuvwxyz ,."
WARM_UP = [{"role": "user", "content": "warm up"}]

Messages = list[dict[str, str]]


@dataclass
class Measured:
    """What one mode did: seconds to the first token by request, the last one after a restart."""

    first: list[float] = field(default_factory=list)
    restarted: float = 0.0
    resident: int = 0
    disk: int = 0
    texts: list[str] = field(default_factory=list)


def conversation(tokens: int, turns: int) -> list[Messages]:
    """Return what is asked at each turn: a system prompt of `tokens` characters, and answers that
    are made up, so that every mode is asked the same."""
    draw = random.Random(7)

    def words(length: int) -> str:
        return "".join(draw.choices(LETTERS, k=length))

    messages = [{"role": "system", "content": words(tokens)}]
    asked = []
    for _ in range(turns + 1):
        messages.append({"role": "user", "content": words(200)})
        asked.append(list(messages))
        messages.append({"role": "assistant", "content": words(40)})
    return asked


def measure(name: str, mode: str, python: str, model: Path, asked: Sequence[Messages]) -> Measured:
    """Serve all but the last request, restart, serve the last."""
    found = Measured()
    with tempfile.TemporaryDirectory() as folder:
        disk, log = Path(folder) / "disk", Path(folder) / "log"
        server = PeerServer(name, mode, python, model, disk, log)
        try:
            server.ask(WARM_UP)
            for messages in asked[:-1]:
                seconds, text = server.ask(messages)
                found.first.append(seconds)
                found.texts.append(text)
            found.resident = server.resident()
        finally:
            server.stop()
        if mode == OURS and OURS_SAYS not in log.read_text():
            raise RuntimeError(f"the cache is not in place:\n{log.read_text()[-2000:]}")
        found.disk = sum(f.stat().st_size for f in disk.rglob("*") if f.is_file())
        server = PeerServer(name, mode, python, model, disk, log)
        try:
            server.ask(WARM_UP)
            found.restarted, text = server.ask(asked[-1])
            found.texts.append(text)
        finally:
            server.stop()
    return found


def table(name: str, found: Mapping[str, Measured]) -> str:
    """Return the rows of one server."""
    lines = [
        f"| {name} | first | second | last | median | after a restart | memory | disk | answers |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    expected = found.get(NO_CACHE, next(iter(found.values()))).texts
    for mode, got in found.items():
        same = sum(a == b for a, b in zip(expected, got.texts, strict=True))
        seconds = (
            got.first[0],
            got.first[1],
            got.first[-1],
            statistics.median(got.first[1:]),
            got.restarted,
        )
        lines.append(
            f"| {mode} | {' | '.join(f'{s:.2f} s' for s in seconds)} "
            f"| {got.resident / 1e6:.0f} MB | {got.disk / 1e6:.1f} MB "
            f"| {same} of {len(got.texts)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the servers that are named, and print a table of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers", nargs="+", metavar="NAME=PYTHON")
    parser.add_argument("--family", default="llama")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--modes", nargs="*")
    options = parser.parse_args()
    asked = conversation(options.tokens, options.turns)
    with tempfile.TemporaryDirectory() as folder:
        shape = SHAPE if options.family == "llama" else {}
        model = make_model(Path(folder) / "model", options.family, **shape)
        for named in options.servers:
            name, _, python = named.partition("=")
            modes = [m for m in PEERS[name].modes if not options.modes or m in options.modes]
            found = {mode: measure(name, mode, python, model, asked) for mode in modes}
            print(table(name, found), flush=True)


if __name__ == "__main__":
    main()
