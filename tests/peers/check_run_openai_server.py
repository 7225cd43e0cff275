"""Check `omlx-cache run mlx-openai-server` with real processes; exits with 1 and what fails.

Two models, as the server has a process for each, also for one.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kit.tinylm import Server, free_port, make_model, run_server

NAME = "mlx-openai-server"
SYSTEM = "You are a helpful assistant who answers briefly and to the point. " * 5


@dataclass(frozen=True)
class Turn:
    text: str
    prompt: int
    cached: int


def converse(server: Server, model: str) -> list[Turn]:
    """Two turns, the second of which sends back what was said in the first."""
    messages = [{"role": "system", "content": SYSTEM}]
    said = []
    with server.client() as client:
        for number in range(2):
            messages.append({"role": "user", "content": f"Question {number}?"})
            reply = client.chat.completions.create(
                model=model, messages=messages, max_tokens=12, temperature=0
            )
            text, usage = reply.choices[0].message.content or "", reply.usage
            cached = usage.prompt_tokens_details.cached_tokens
            said.append(Turn(text, usage.prompt_tokens, cached))
            messages.append({"role": "assistant", "content": text})
    return said


def without_outlines(home: Path) -> str:
    """Return a folder that stands for outlines: it is for JSON schemas only, and brings torch."""
    folder = home / "stand-ins"
    models = folder / "outlines" / "models"
    models.mkdir(parents=True)
    (folder / "outlines" / "__init__.py").write_text("")
    (folder / "outlines" / "processors.py").write_text("JSONLogitsProcessor = None\n")
    (models / "__init__.py").write_text("")
    (models / "transformers.py").write_text(
        "class TransformerTokenizer:\n    def __init__(self, tokenizer):\n        pass\n"
    )
    return str(folder)


def twice(home: Path, models: list[str], *arguments: str, port: int | None = None) -> None:
    """Two conversations with each model, and again in a process that starts anew."""
    path = os.pathsep.join([without_outlines(home), *sys.path])
    before: dict[str, list[Turn]] = {}
    for again in (False, True):
        server = run_server(home, NAME, *arguments, "--no-log-file", port=port, PYTHONPATH=path)
        try:
            for model in models:
                first, second = converse(server, model)
                assert second.cached > first.prompt, (first, second)
                if again:
                    assert [first.text, second.text] == [turn.text for turn in before[model]]
                    assert first.cached == first.prompt - 1, (first, server.text())
                else:
                    assert first.cached == 0, first
                before[model] = [first, second]
        finally:
            code = server.stop(signal.SIGTERM)
        said = server.text()
        assert code == 0, said
        assert "Traceback" not in said, said
    assert said.count(f"keeps the prompts of {NAME} (mlx-openai-server 1.8.1)") == 2, said


def a_process_for_each_model(home: Path) -> None:
    names, port = ["first", "second"], free_port()
    lines = ["server:", "  host: 127.0.0.1", f"  port: {port}", "  no_log_file: true", "models:"]
    for seed, name in enumerate(names):
        make_model(home / name, "qwen3", seed=seed)
        lines += [f"  - model_path: {home / name}", f"    served_model_name: {name}"]
    (home / "servers.yaml").write_text("\n".join(lines) + "\n")
    twice(home, names, "launch", "--config", str(home / "servers.yaml"), port=port)


def main() -> int:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        try:
            a_process_for_each_model(Path(home))
        except AssertionError as error:
            print(f"FAILED {error}")
            return 1
    print(f"  omlx-cache run {NAME}: restored in each model's process, and after a restart")
    return 0


if __name__ == "__main__":
    sys.exit(main())
