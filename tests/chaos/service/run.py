"""The campaign: a disturbance of one process after the other, while all servers are asked."""

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kit.storage import disk_usage
from kit.tinylm import make_model

from .load import Load, Seen
from .machine import BUDGET, PATIENCE, Service, Serving

LATE_SECONDS = 20.0
"""A tiny model answers in a fraction of a second; that this machine is busy with restarts of others
is no wait for them."""
STOPPED_SECONDS = 4.0
"""Longer than anybody waits for the directory."""
HOWS = ("killed", "stopped", "ended")
Victim = Service | Serving


class Sampler(threading.Thread):
    """Looks at what the directory takes, again and again."""

    def __init__(self, directory: Path, stop: threading.Event) -> None:
        super().__init__(name="sampler", daemon=True)
        self._directory, self._stop_asked = directory, stop
        self.most = self.samples = 0

    def run(self) -> None:
        while not self._stop_asked.wait(0.25):
            with contextlib.suppress(OSError):
                self.most = max(self.most, disk_usage(self._directory))
                self.samples += 1


class Campaign:
    """Three servers, a service, and what was seen of them."""

    def __init__(self, home: Path) -> None:
        model = make_model(home / "model", "qwen3")
        self.seen, self._stop = Seen(), threading.Event()
        self.service = Service(home)
        self.servers = [Serving(home, model, number) for number in range(3)]
        self.sampler = Sampler(home / "cold", self._stop)
        self._loads = [Load(one, str(model), self.seen, self._stop) for one in self.servers]
        self.turns = 0
        self.back: list[float] = []

    def run(self, seconds: float) -> None:
        """Disturb everybody in every way, in turn, until the time is over and each had one."""
        deadline = time.monotonic() + seconds
        for thread in (self.sampler, *self._loads):
            thread.start()
        for how, victim in self._schedule():
            if self.turns and time.monotonic() >= deadline:
                break
            self._disturb(victim, how)
            self.turns += 1
        self._stop.set()
        for thread in (self.sampler, *self._loads):
            thread.join(PATIENCE)

    def _schedule(self) -> Iterator[tuple[str, Victim]]:
        while True:
            for how in HOWS:
                for victim in (self.service, *self.servers):
                    yield how, victim

    def _disturb(self, victim: Victim, how: str) -> None:
        if isinstance(victim, Serving):
            victim.begin()
        process = victim.process if isinstance(victim, Service) else victim.server.process
        if how == "stopped":
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            os.kill(process.pid, signal.SIGCONT)
        else:
            process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
            time.sleep(1.0)
            victim.restart()
        if isinstance(victim, Serving):
            victim.end()
        self._wait_for_metrics(how)

    def _wait_for_metrics(self, how: str) -> None:
        """Wait until everybody is shown again."""
        began = time.monotonic()
        wanted = {self.service.process.pid, *(one.pid for one in self.servers)}
        found: dict[int, float] = {}
        while time.monotonic() < began + PATIENCE:
            with contextlib.suppress(OSError):
                found = self.service.up()
                if {pid for pid, value in found.items() if value == 1.0} == wanted == set(found):
                    self.back.append(time.monotonic() - began)
                    return
            time.sleep(0.1)
        self.seen.fail(f"metrics did not come back after one was {how}: {found}, not {wanted}")

    def faults(self) -> list[str]:
        """Return everything that must not be."""
        found = [*self.seen.failures, *self.service.failures()]
        if self.sampler.most > BUDGET:
            found.append(f"{self.sampler.most} bytes, and the budget is {BUDGET}")
        found += [f"a request took {s:.1f} s" for s in self.seen.seconds if s > LATE_SECONDS]
        return found

    def report(self) -> str:
        """Return what was done and seen, in words."""
        seconds = sorted(self.seen.seconds) or [0.0]
        part = self.seen.cached_tokens / max(1, self.seen.prompt_tokens)
        return (
            f"{self.turns} disturbances (killed, stopped, ended) of a service and three servers; "
            f"{self.seen.answered} requests answered, {part:.0%} of their tokens cached; "
            f"{self.seen.excused} to a server that was itself disturbed failed. Of the others "
            f"half took {seconds[len(seconds) // 2]:.2f} s at most, 99 % "
            f"{seconds[int(len(seconds) * 0.99)]:.2f} s, the longest {seconds[-1]:.2f} s. "
            f"The directory had {self.sampler.most} of {BUDGET} bytes at most in "
            f"{self.sampler.samples} samples. Metrics of all were back after "
            f"{max(self.back, default=0.0):.1f} s at most.\n"
        )

    def close(self) -> None:
        self._stop.set()
        for one in (self.service, *self.servers):
            one.close()


class Done(NamedTuple):
    """A campaign that is over."""

    report: str
    faults: list[str]


def run(seconds: float, base: Path | None = None) -> Done:
    """Run a campaign in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="oc-", dir=base or "/tmp") as home:
        campaign = Campaign(Path(home))
        try:
            campaign.run(seconds)
            return Done(campaign.report(), campaign.faults())
        finally:
            campaign.close()
