"""`omlx-cache monitor` against a real store whose requests the test begins and ends."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

import pytest

from kit.embedded import embedded_stores
from kit.examples import some
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.requests.log import FOLLOWED_SECONDS

_STORE = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_cache_only=True), name="embedded") as store:
    asked = {}
    print("ready", flush=True)
    for line in sys.stdin:
        word, name, *rest = line.split()
        if word == "ask":
            document = {"label": "org/tiny-model", "salt": "text:0123456789abcdef"}
            asked[name] = store.requests.ask("ab" * 32, document, int(rest[0]))
        elif word == "restore":
            asked[name].restored(int(rest[0]), int(rest[1]), 0.25, rest[2])
            asked[name].computed(100, 0.5)
        elif word == "untimed":
            asked[name].restored(int(rest[0]), 0, 0.25, None)
        elif word == "end":
            asked[name].ended(20)
        elif word == "many":
            for number in range(int(name)):
                store.requests.ask("", {}, 1).ended(0)
        print("done", flush=True)
"""


@dataclass
class Driven:
    """A store that does what it is told."""

    process: "subprocess.Popen[str]"

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture
def driven(environment: dict[str, str]) -> Iterator[Driven]:
    with embedded_stores(_STORE) as run:
        yield Driven(run(environment))


@dataclass
class Monitor:
    """A monitor that has looked once: what begins from now on it does not miss."""

    process: "subprocess.Popen[str]"
    header: str = ""

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


Watch = Callable[..., Monitor]

_ANNOUNCED = """
import sys
import omlx_cache_daemon.following as following
from omlx_cache_daemon.cli import main
take = following.Follower.take
def announced(self, reply):
    first = self._after is None
    taken = take(self, reply)
    if first:
        print("looking", flush=True)
    return taken
following.Follower.take = announced
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def watch(environment: dict[str, str]) -> Iterator[Watch]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> Monitor:
        process = subprocess.Popen(
            [sys.executable, "-c", _ANNOUNCED, "monitor", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        monitor = Monitor(process)
        if "json" not in arguments:
            monitor.header = monitor.out.readline()
        assert monitor.out.readline() == "looking\n"
        return monitor

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=30)


def test_a_request_is_a_line_when_it_ends(driven: Driven, watch: Watch) -> None:
    monitor = watch()
    assert monitor.header.split()[:4] == ["TIME", "NUMBER", "MODEL", "SALT"], "at once"
    driven.tell("ask one 5000")
    driven.tell("restore one 4900 1200 evicted")
    driven.tell("end one")
    words = monitor.out.readline().split()
    assert words[1:8] == ["1", "tiny-model", "01234567", "5,000", "3,700", "1,200", "0"]
    assert words[8:10] == ["100", "20"]
    assert words[10:16] == ["0.250", "s", "0.000", "s", "0.500", "s"]
    assert words[-1] == "evicted"
    assert monitor.stop() == (0, "")


@pytest.mark.nightly
def test_what_a_server_does_not_time_is_computed_all_the_same(driven: Driven, watch: Watch) -> None:
    monitor = watch()
    driven.tell("ask one 5000")
    driven.tell("untimed one 4900")
    driven.tell("end one")
    assert monitor.out.readline().split()[4:9] == ["5,000", "4,900", "0", "0", "100"]


def test_a_request_that_began_before_the_monitor_is_shown_and_one_that_ended_is_not(
    driven: Driven, watch: Watch
) -> None:
    driven.tell("ask old 10")
    driven.tell("end old")
    driven.tell("ask open 20")
    monitor = watch("--format", "json")
    driven.tell("ask new 30")
    driven.tell("end new")
    assert json.loads(monitor.out.readline())["prompt_tokens"] == 30
    driven.tell("end open")
    last = json.loads(monitor.out.readline())
    assert (last["prompt_tokens"], last["number"]) == (20, 2)
    assert last["total_seconds"] > 0
    assert monitor.stop() == (0, "")


@pytest.mark.nightly
def test_begin_shows_a_request_twice(driven: Driven, watch: Watch) -> None:
    monitor = watch("--begin", "--format", "json")
    driven.tell("ask one 5000")
    assert json.loads(monitor.out.readline())["total_seconds"] is None
    driven.tell("end one")
    assert json.loads(monitor.out.readline())["total_seconds"] > 0


def test_requests_that_were_forgotten_are_counted(driven: Driven, watch: Watch) -> None:
    monitor = watch("--format", "json")
    driven.tell("many 5000")
    numbers = [json.loads(monitor.out.readline())["number"]]
    while numbers[-1] < 5000:
        numbers.append(json.loads(monitor.out.readline())["number"])
    assert len(numbers) == len(set(numbers))
    code, err = monitor.stop()
    assert code == 0
    told = sum(int(line.split()[1]) for line in err.splitlines())
    assert "requests were not seen" in err
    assert len(numbers) + told == 5000


@pytest.mark.nightly
def test_a_monitor_ends_with_69_when_the_store_goes(driven: Driven, watch: Watch) -> None:
    monitor = watch()
    driven.process.kill()
    _, err = monitor.process.communicate(timeout=30)
    assert monitor.process.returncode == 69
    assert "the store has gone" in err
    assert "Traceback" not in err


def test_the_last_request_of_a_store_that_ends_is_shown(driven: Driven, watch: Watch) -> None:
    monitor = watch("--format", "json")
    driven.tell("ask one 5000")
    assert driven.process.stdin is not None
    driven.process.stdin.write("ask two 6000\nend two\nend one\n")
    driven.process.communicate(timeout=30)
    out, err = monitor.process.communicate(timeout=30)
    shown = [json.loads(line)["prompt_tokens"] for line in out.splitlines()]
    assert sorted(shown) == [5000, 6000]
    assert (monitor.process.returncode, "the store has gone" in err) == (69, True)


def test_a_store_that_nobody_follows_closes_at_once() -> None:
    with BlockStore(CacheSettings(hot_cache_only=True, socket="off")) as store:
        store.requests.ask("", {}, 1).ended(0)
        began = time.monotonic()
    assert time.monotonic() - began < FOLLOWED_SECONDS


def test_a_monitor_imports_nothing_heavy(driven: Driven, environment: dict[str, str]) -> None:
    code = (
        "import sys, omlx_cache_daemon.watching as w\n"
        "from omlx_cache_daemon.cli import main\n"
        "def once(step, seconds):\n"
        "    step()\n"
        "import omlx_cache_daemon.commands.monitor as m\n"
        "m.until_interrupted = once\n"
        "code = main(['monitor', '--format', 'json'])\n"
        "print(code, sorted({'mlx', 'mlx_lm', 'numpy', 'pydantic'} & set(sys.modules)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "0 []\n"


@pytest.mark.parametrize(
    "arguments",
    some([{"after": -1}, {"after": "x"}, {"after": 0, "open": ["x"]}], {"after": "x"}),
    ids=str,
)
def test_a_wrong_question_is_refused(
    driven: Driven, environment: dict[str, str], arguments: dict[str, object]
) -> None:
    code = (
        "import sys, json\n"
        "from omlx_cache.control.errors import ControlError\n"
        "from omlx_cache_daemon.stores import running\n"
        "try:\n"
        "    print(running()[0].client().call('requests', **json.loads(sys.argv[1])))\n"
        "except ControlError as error:\n"
        "    print(error.code)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "bad_request\n"
