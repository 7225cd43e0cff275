"""Check `omlx-cache run` with servers' own commands, as processes that are asked over HTTP.

    python tests/peers/check_servers.py NAME...

Answers are those of the server without a cache, also of one that was started again, which restores
what it was asked before; and of a version that lacks a name, or that restores something else, which
runs with its own cache. Exits with 1 and what fails.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path

from checking import run_checks
from serving import NO_CACHE, OURS, OURS_SAYS, PeerServer

from kit.tinylm import make_model

ANOTHER_VERSION = {
    "has no ": "host_server.missing = lambda needed, version: list(needed)[:1]",
    "restores something else": "probe.is_right = lambda *_: False; "
    "host_server.HostServer.is_tested = 0",
}
"""What runs in each process of a version that nobody has seen, and what is logged then."""
FIRST = "from omlx_cache.integrations import host_server, probe\n"
QUESTION = "What a long question this is, about nothing much, and yet it goes on and on. " * 4
MESSAGES = [{"role": "user", "content": QUESTION}]


def serve(name: str, mode: str, folder: Path, model: Path) -> tuple[str, int | None, str]:
    """Return an answer, what was restored for it, and what the server logged."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    server = PeerServer(name, mode, sys.executable, model, folder / mode, log)
    try:
        text, cached = server.answer(MESSAGES)
    finally:
        server.stop()
    said = log.read_text()
    assert mode == NO_CACHE or "Traceback" not in said, said
    return text, cached, said


def command(name: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        folder = Path(home)
        os.environ["XDG_STATE_HOME"] = home
        model = make_model(folder / "model", "llama")
        plain, _cached, _said = serve(name, NO_CACHE, folder, model)
        first, again = (serve(name, OURS, folder, model) for _start in range(2))
        assert first[0] == again[0] == plain, (plain, first, again)
        assert OURS_SAYS in first[2], first[2]
        assert again[1] is None or again[1] > 64, again
        sys.path.insert(0, str(folder))
        for said, what in ANOTHER_VERSION.items():
            (folder / "sitecustomize.py").write_text(FIRST + what)
            text, _cached, log = serve(name, OURS, folder, model)
            assert text == plain, (plain, text)
            assert said in log, log
            assert "it runs with its own cache" in log, log
        sys.path.remove(str(folder))
        print(f"       {name}: {again[1]} tokens restored after a restart")


if __name__ == "__main__":
    checks = [functools.wraps(command)(functools.partial(command, name)) for name in sys.argv[1:]]
    sys.exit(run_checks(f"commands: {', '.join(sys.argv[1:])}", checks))
