"""A model server in a process of its own, asked over HTTP as a client would."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.replay_trace import ReplayRequest

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request took: seconds to its first token and to its last."""

    first_token_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    text: str


class ReplayServer:
    """Runs `python -m <command> --port <free port>` until `stop`; its log goes to a file."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with log.open("a") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, "--port", str(port)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
                stdout=stream,
                stderr=stream,
            )
        self._url = f"http://127.0.0.1:{port}"
        self._wait(log)

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        self._process.kill()
        raise RuntimeError(f"the server did not start; see {log}")

    def stop(self) -> None:
        """End it as a person would."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(120)

    def ask(self, request: ReplayRequest) -> Answer:
        """Send one streaming completion and read it to its end."""
        body = {
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        posted = urllib.request.Request(
            f"{self._url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        began = time.perf_counter()
        first = 0.0
        text = ""
        usage: dict[str, object] = {}
        with urllib.request.urlopen(posted, timeout=600) as reply:
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                first = first or time.perf_counter() - began
                usage = event.get("usage") or usage
                text += "".join(choice.get("text") or "" for choice in event["choices"])
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens", 0) if isinstance(details, dict) else 0
        prompt = int(str(usage["prompt_tokens"]))
        return Answer(first, time.perf_counter() - began, prompt, int(cached), text)
