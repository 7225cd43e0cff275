"""Three servers and the service on one directory, each killed, stopped and ended in turn: nobody
else notices."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from openai import OpenAIError
from prometheus_client.parser import text_string_to_metric_families

from kit.storage import disk_usage
from kit.tinylm import Server, free_port, make_model, serve_ours

from .tally import Tally

BUDGET = 6 * 2**20
PATIENCE = 60.0
LATE_SECONDS = 20.0
"""A tiny model answers in a fraction of a second; that this machine is busy with restarts of others
is no wait for them."""
STOPPED_SECONDS = 4.0
"""Longer than anybody waits for the directory."""
HOWS = ("killed", "stopped", "ended")
SYSTEM = "You are a helpful assistant who answers briefly and to the point. " * 6
TOPICS = 24
REPEAT = "python -m qa.chaos service"


class Service:
    """The service, with a port that it keeps over its restarts."""

    def __init__(self, home: Path) -> None:
        self._home, self._port = home, free_port()
        self.log = home / "service.log"
        self.start()

    def start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if "OMLX_" not in name}
        flags = ("--status-port", str(self._port), "--scrub-bytes-per-second", "64MiB",
                 "--scrub-days", "0.001", "--min-free-bytes", "0")  # fmt: skip
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "omlx_cache_daemon.service", *flags],
                env={
                    **kept,
                    "OMLX_CACHE_COLD_DIR": str(self._home / "cold"),
                    "OMLX_CACHE_RUNTIME_DIR": str(self._home / "run"),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                stderr=log,
            )

    def wait(self) -> None:
        self.process.wait(30)

    def up(self) -> set[tuple[int, float]]:
        """Return which processes are shown, and whether they answer; raises OSError."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as reply:
            text = reply.read().decode()
        return {
            (int(sample.labels["pid"]), sample.value)
            for family in text_string_to_metric_families(text)
            if family.name == "omlx_cache_up"
            for sample in family.samples
        }


class Serving:
    """One of the servers. Requests that it met while it was disturbed are excused."""

    def __init__(self, home: Path, model: Path, number: int) -> None:
        self._home, self.model, self.number = home, model, number
        self.undisturbed = 0.0
        self.server: Server
        self.start()

    def start(self) -> None:
        self.server = serve_ours(
            self._home / f"server-{self.number}",
            "--model",
            str(self.model),
            OMLX_CACHE_COLD_DIR=str(self._home / "cold"),
            OMLX_CACHE_RUNTIME_DIR=str(self._home / "run"),
            OMLX_CACHE_COLD_BYTES=str(BUDGET),
            OMLX_CACHE_HOT_BYTES="8MiB",
        )

    @property
    def process(self) -> "subprocess.Popen[str]":
        return self.server.process

    def wait(self) -> None:
        self.server.wait()


class Machine:
    """The processes on one directory, and threads that ask every server all the time."""

    def __init__(self, home: Path, tally: Tally) -> None:
        self._home, self._tally = home, tally
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._answers: dict[tuple[int, int], str] = {}
        model = make_model(home / "model", "qwen3")
        self.service = Service(home)
        self.servers = [Serving(home, model, number) for number in range(3)]

    def fail(self, what: str) -> None:
        self._tally.fail("service", "stuck", what, REPEAT)

    def run(self, seconds: float) -> None:
        """Disturb everybody in every way, in turn, until the time is over."""
        threads = [threading.Thread(target=self._ask, args=[one]) for one in self.servers]
        threads.append(threading.Thread(target=self._sample))
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.start()
        try:
            for how in itertools.cycle(HOWS):
                for victim in (self.service, *self.servers):
                    if time.monotonic() >= deadline:
                        return
                    self._disturb(victim, how)
                    self._tally.count(f"{how} process of the service's")
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(PATIENCE)
            for line in self.service.log.read_text().splitlines():
                if "Traceback" in line or "not looked after" in line:
                    self.fail(f"the service logged {line}")

    def _disturb(self, victim: Service | Serving, how: str) -> None:
        if isinstance(victim, Serving):
            victim.undisturbed = float("inf")
        if how == "stopped":
            os.kill(victim.process.pid, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            os.kill(victim.process.pid, signal.SIGCONT)
        else:
            victim.process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
            time.sleep(1.0)
            victim.wait()
            victim.start()
        if isinstance(victim, Serving):
            victim.undisturbed = time.monotonic()
        self._wait_for_metrics(how)

    def _wait_for_metrics(self, how: str) -> None:
        """Wait until everybody is shown again."""
        deadline = time.monotonic() + PATIENCE
        wanted = {(one.process.pid, 1.0) for one in (self.service, *self.servers)}
        found: set[tuple[int, float]] = set()
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                found = self.service.up()
                if found == wanted:
                    return
            time.sleep(0.1)
        self.fail(f"metrics did not come back after one was {how}: {found}, not {wanted}")

    def _sample(self) -> None:
        while not self._stop.wait(0.25):
            with contextlib.suppress(OSError):
                used = disk_usage(self._home / "cold")
                self._tally.add(samples=1)
                if used > BUDGET:
                    self._tally.fail("service", "over", f"{used} of {BUDGET} bytes", REPEAT)

    def _ask(self, serving: Serving) -> None:
        """Talk about one topic after the other; what one server computed others find."""
        for at in itertools.count(serving.number * 7):
            if self._stop.is_set():
                return
            self._turn(serving, at % TOPICS, at // TOPICS % 3)

    def _turn(self, serving: Serving, topic: int, number: int) -> None:
        texts = [f"Question {n} about {topic}?" for n in range(number + 1)]
        messages = [{"role": "system", "content": f"Topic {topic}. {SYSTEM}"}]
        messages += [{"role": "user", "content": text} for text in texts]
        began = time.monotonic()
        try:
            with serving.server.client() as client:
                reply = client.chat.completions.create(
                    model=str(serving.model), messages=messages, max_tokens=4, temperature=0
                )
        except (OpenAIError, OSError) as error:
            if serving.undisturbed < began:
                self.fail(f"server {serving.number}: {type(error).__name__}: {error}")
            # It is being started again, which takes a while.
            self._stop.wait(0.2)
            return
        if serving.undisturbed < began < time.monotonic() - LATE_SECONDS:
            self.fail(f"a request took {time.monotonic() - began:.1f} s")
        text = reply.choices[0].message.content or ""
        cached = reply.usage.prompt_tokens_details.cached_tokens
        self._tally.add(answered=1, cached=cached, prompted=reply.usage.prompt_tokens)
        with self._lock:
            known = self._answers.setdefault((topic, number), text)
        if known != text:
            self._tally.fail("service", "wrong", f"{topic}, {number}: another answer", REPEAT)

    def close(self) -> None:
        for one in (self.service, *self.servers):
            one.process.kill()
            one.wait()


def run_service(seconds: float, tally: Tally, home: Path) -> None:
    """Run servers and the service in a directory for so long."""
    machine = Machine(home, tally)
    try:
        machine.run(seconds)
    finally:
        machine.close()
