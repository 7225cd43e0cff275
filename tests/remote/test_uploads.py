"""Pages go to other machines behind everything else: each once, root first, whatever fails."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.remote import MemoryEngine, MemoryStore
from kit.remote.processes import until
from kit.storage import Story, files_in, flip
from kit.units import MIB
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.remote import uploads as module
from omlx_cache_storage.remote.engine import RemoteOptions
from omlx_cache_storage.remote.envelope import RemoteNames
from omlx_cache_storage.remote.tier import RemoteTier
from omlx_cache_storage.remote.uploads import TRIES, UploadPolicy, Uploads

DEADLINE = 60.0
STORY = Story()
OPTIONS = RemoteOptions("redis://somewhere", "cpu", lookup_seconds=DEADLINE, read_seconds=DEADLINE)
NAMES = RemoteNames(OPTIONS.prefix, OPTIONS.architecture)


class _Sender:
    """A directory, a tier on a store in memory, and what sends from the one to the other."""

    def __init__(self, directory: Path, store: MemoryStore, policy: UploadPolicy) -> None:
        self.engine = MemoryEngine(store)
        self.now = 1000.0
        self.remote = RemoteTier(
            self.engine, OPTIONS, engine_name="memory", where="memory", clock=lambda: self.now
        )
        self.cold = ColdTier(directory, 64 * MIB)
        self.cold.open()
        self.left: set[bytes] = set()
        self.uploads = Uploads(
            self.remote.store,
            None,
            self.cold,
            policy,
            lambda keys: {key for key in keys if key in self.left},
        )

    def has(self, *numbers: int, story: Story = STORY) -> None:
        """Have pages on the disk, of which nobody else was told."""
        for page in story.pages(*numbers):
            assert self.cold.write(page, 10**18, story.document) in ("written", "present")

    def store(self, *numbers: int, story: Story = STORY) -> None:
        """Store pages as a commit does."""
        self.has(*numbers, story=story)
        for page in story.ids(*numbers):
            self.uploads.stored(page)

    def counts(self) -> tuple[int, int, int]:
        """Return the pages that wait, were dropped, and were not taken."""
        usage = self.uploads.counted(self.remote.usage())
        return usage.pending_pages, usage.dropped_pages, usage.failed_pages

    def start(self) -> None:
        self.written: list[str] = []
        self.engine.each.setdefault("write", lambda name, parts: self.written.append(name))
        self.uploads.start()

    def close(self) -> None:
        self.uploads.close(DEADLINE)
        self.remote.close(DEADLINE)
        self.cold.close()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def one(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[_Sender]:
    """A machine that sends nothing yet: everything, or what the test's policy wants."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    one = _Sender(tmp_path / "cold", store, getattr(request, "param", "all"))
    yield one
    one.close()


def _names(*numbers: int, story: Story = STORY) -> list[str]:
    return [NAMES.page(story.namespace, page) for page in story.ids(*numbers)]


def test_a_damaged_page_is_not_sent(one: _Sender, store: MemoryStore) -> None:
    one.store(1, 2)
    for path in files_in(one.cold.directory):
        if path.name.startswith(STORY.id(1).key.hex()[:16]):
            flip(path)
    one.start()
    assert one.uploads.flush(DEADLINE)
    assert sorted(store.values) == _names(2)
    assert one.counts() == (0, 1, 0)


def test_a_store_that_fails_gets_everything_once_it_is_back(
    one: _Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.engine.fail["*"] = "refused"
    one.store(*range(1, 41))
    one.start()
    until(lambda: bool(one.remote.resting))
    asked = one.engine.calls["look"]
    assert not one.uploads.flush(0.2)
    # Only probes, which go out one at a time, come while it rests.
    assert one.engine.calls["look"] - asked <= 1
    assert one.counts()[0] >= 40
    one.engine.fail.clear()
    assert one.uploads.flush(DEADLINE)
    assert one.counts() == (0, 0, 0)
    assert set(one.written) == set(_names(*range(1, 41)))


def test_a_page_that_is_never_taken_is_given_up_and_holds_up_no_other(
    one: _Sender, store: MemoryStore
) -> None:
    one.store(1, 2, 3)
    tried: list[str] = []

    def refuse(name: str, parts: object) -> None:
        tried.append(name)
        if name == _names(2)[0]:
            raise module.RemoteError("error", "this one is too large")

    one.engine.each["write"] = refuse
    one.start()
    assert one.uploads.flush(DEADLINE)
    assert sorted(store.values) == sorted(_names(1, 3))
    assert one.counts() == (0, 0, 1)
    assert tried.count(_names(2)[0]) == TRIES


def test_what_does_not_fit_is_dropped_and_counted(
    one: _Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PAGES", 10)
    one.store(*range(1, 31))
    assert one.counts() == (10, 20, 0)
    one.start()
    assert one.uploads.flush(DEADLINE)
    assert one.written == _names(*range(1, 11))


def test_closing_ends_in_time_and_says_that_something_was_left(
    one: _Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.2)
    one.has(*range(1, 9))
    with one.engine.hanging("write"):
        one.start()
        for page in STORY.ids(*range(1, 9)):
            one.uploads.stored(page)
        assert one.engine.reached.wait(DEADLINE)
        began = time.monotonic()
        assert not one.uploads.close(DEADLINE)
        assert time.monotonic() - began < DEADLINE / 2
        assert one.counts()[1]
        assert not one.uploads.close(0.0)


@pytest.mark.parametrize("one", ["shared"], indirect=True)
def test_what_several_begin_with_is_sent_and_nobodys_own_turns(one: _Sender) -> None:
    one.start()
    one.store(1, 2, 3, 4)
    one.uploads.used(STORY.ids(1, 2, 3, 4))
    assert one.uploads.flush(DEADLINE)
    assert one.written == []
    one.left = {STORY.id(2).key}
    one.uploads.used(STORY.ids(1, 2, 3, 4))
    assert one.uploads.flush(DEADLINE)
    assert one.written == _names(1, 2)


_PAGES = st.integers(1, 8)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stored"), _PAGES),
        st.tuples(st.just("used"), _PAGES),
        st.tuples(st.just("gone here"), _PAGES),
        st.tuples(st.just("evicted there"), _PAGES),
        st.tuples(st.just("flush"), st.just(0)),
    ),
    max_size=25,
)


@given(_STEPS, st.sampled_from(["all", "reused"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_sent_is_what_the_policy_wants_and_each_page_once(
    tmp_path: Path, steps: list[tuple[str, int]], policy: UploadPolicy
) -> None:
    """A model: what is here, what was asked for since it was last sent, and what there is there."""
    store = MemoryStore()
    one = _Sender(tmp_path / str(uuid.uuid4()), store, policy)
    one.start()
    here: set[int] = set()
    sent: list[int] = []
    try:
        for what, number in [*steps, ("flush", 0)]:
            wanted: list[int] = []
            if what == "stored":
                one.store(number)
                here.add(number)
                wanted = [number] if policy == "all" else []
            elif what == "used":
                one.uploads.used(STORY.ids(*range(1, number + 1)))
                wanted = [n for n in range(1, number + 1) if n in here]
            elif what == "gone here":
                one.cold.discard([STORY.id(number)])
                here.discard(number)
            elif what == "evicted there":
                store.evict(_names(number)[0])
            # So that what a page was when it was its turn is known.
            assert one.uploads.flush(DEADLINE)
            sent += [n for n in wanted if n not in sent]
        assert one.written == _names(*sent)
        assert one.counts()[::2] == (0, 0)
    finally:
        one.close()
