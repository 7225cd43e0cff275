"""Other projects' servers as processes: their commands, with their own caches and with this one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.tinylm import free_port

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
END_SECONDS = 60.0
ANSWER_TOKENS = 16
NO_CACHE, OWN, ON_DISK, OURS = "no cache", "its own", "its own, disk", "omlx-cache"
OURS_SAYS = "keeps the prompts of"


@dataclass(frozen=True)
class Peer:
    """How a server is started: its own command, and what its modes add to arguments and
    environment; `{disk}` is a directory that outlives a restart."""

    module: Sequence[str]
    arguments: Sequence[str]
    modes: Mapping[str, tuple[Sequence[str], Mapping[str, str]]]


SETTINGS = {
    "OMLX_CACHE_COLD_DIR": "{disk}/pages",
    "OMLX_CACHE_SOCKET": "off",
    "OMLX_CACHE_WORTH_READING": "off",
}
PEERS = {
    "vllm-mlx": Peer(
        ("-m", "vllm_mlx.cli"),
        ("serve", "{model}", "--continuous-batching", "--port", "{port}"),
        {
            NO_CACHE: (("--disable-prefix-cache",), {}),
            OWN: ((), {}),
            ON_DISK: (("--ssd-cache-dir", "{disk}/pages"), {}),
            OURS: ((), SETTINGS),
        },
    ),
    "mlx-openai-server": Peer(
        ("-m", "app.main"),
        (
            *("launch", "--model-path", "{model}", "--model-type", "lm"),
            *("--port", "{port}", "--no-log-file"),
        ),
        {
            NO_CACHE: (("--prompt-cache-size", "0"), {}),
            OWN: ((), {}),
            OURS: ((), SETTINGS),
        },
    ),
    "mlx_vlm.server": Peer(
        ("-m", "mlx_vlm.server"),
        ("--model", "{model}", "--port", "{port}"),
        {
            NO_CACHE: ((), {}),
            OWN: ((), {"APC_ENABLED": "1", "APC_DISK_ENABLED": "0"}),
            ON_DISK: ((), {"APC_ENABLED": "1", "APC_DISK_PATH": "{disk}/pages"}),
            OURS: ((), SETTINGS),
        },
    ),
    "mlx_lm.server": Peer(
        ("-m", "mlx_lm.server"),
        ("--model", "{model}", "--port", "{port}"),
        {
            NO_CACHE: (("--prompt-cache-size", "0"), {}),
            OWN: ((), {}),
            OURS: ((), SETTINGS),
        },
    ),
}


class PeerServer:
    """A server in a process group of its own, until `stop`."""

    def __init__(
        self, name: str, mode: str, python: str, model: Path, disk: Path, log: Path
    ) -> None:
        peer = PEERS[name]
        port = free_port()
        extra, variables = peer.modes[mode]
        names = {"model": str(model), "port": str(port), "disk": str(disk)}
        arguments = [part.format(**names) for part in (*peer.arguments, *extra)]
        path = os.pathsep.join(str(ROOT / part) for part in ("", "daemon", "storage"))
        # Of an interpreter with an environment of its own, nothing of this one's.
        beside = os.pathsep.join(sys.path) if python == sys.executable else ""
        ours = [python, "-m", "omlx_cache", "run", name]
        command = ours if mode == OURS else _own(name, python)
        self.url = f"http://127.0.0.1:{port}"
        self.model = str(model)
        disk.mkdir(parents=True, exist_ok=True)
        with log.open("a") as stream:
            self._process = subprocess.Popen(
                [*command, *arguments],
                env={
                    **os.environ,
                    "PYTHONPATH": f"{path if mode == OURS else ''}{os.pathsep}{beside}",
                    "HF_HUB_OFFLINE": "1",
                    **{key: value.format(**names) for key, value in variables.items()},
                },
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._wait(log)

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")

    def _post(self, messages: Sequence[Mapping[str, str]], *, stream: bool) -> Any:
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0.0,
            "stream": stream,
        }
        posted = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(posted, timeout=600)

    def answer(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, int | None]:
        """Return an answer, and how much of its prompt was restored where the server says it."""
        with self._post(messages, stream=False) as reply:
            said = json.load(reply)
        details = said["usage"].get("prompt_tokens_details") or {}
        return said["choices"][0]["message"]["content"] or "", details.get("cached_tokens")

    def ask(self, messages: Sequence[Mapping[str, str]]) -> tuple[float, str]:
        """Return the seconds to the first word of an answer, and all of it."""
        began, first, text = time.perf_counter(), 0.0, ""
        with self._post(messages, stream=True) as reply:
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:]).get("choices") or [{}]
                words = choices[0].get("delta", {}).get("content") or ""
                # Some say at once that an answer will come, and some answers have no words.
                if not first and (words or choices[0].get("finish_reason")):
                    first = time.perf_counter() - began
                text += words
        return first, text

    def resident(self) -> int:
        """Return the resident bytes of the server's processes."""
        total = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                if os.getsid(int(status.parent.name)) == self._process.pid:
                    found = [ln for ln in status.read_text().splitlines() if "VmRSS" in ln]
                    total += sum(int(line.split()[1]) * 1024 for line in found)
            except (OSError, ProcessLookupError):
                continue
        return total

    def stop(self) -> None:
        """End it as a person would."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                print("  (did not end at SIGINT)", file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _own(name: str, python: str) -> list[str]:
    script = Path(python).parent / name
    return [str(script)] if script.exists() else [python, *PEERS[name].module]
