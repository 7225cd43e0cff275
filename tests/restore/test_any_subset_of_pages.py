"""Whatever part of the pages fails or is late: what is restored is exact, and nothing raises."""

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kit.examples import examples, some
from kit.executors import EXECUTORS, compute_on
from kit.restoring import BLOCK, DENSE, HYBRID, TOKENS, WINDOWED, Conversation, PagedDisk
from omlx_cache.restore.queue import RestoreQueue

FAMILIES = (DENSE, WINDOWED, HYBRID)
ENDS = [*range(BLOCK, TOKENS + 1, BLOCK), TOKENS]
PAGES = st.frozensets(st.tuples(st.sampled_from(ENDS), st.sampled_from(["paged", "other"])))
EXAMPLES = hypothesis_settings(
    max_examples=examples(10),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def named(pages: frozenset[tuple[int, str]], position: int, group: str) -> bool:
    return (position, "paged" if group == "paged" else "other") in pages


@pytest.fixture(scope="module", params=some(FAMILIES, WINDOWED))
def talk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    return Conversation(request.param, tmp_path_factory.mktemp("cold"))


@pytest.fixture(params=EXECUTORS, autouse=True)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_on(request.param, monkeypatch)


@EXAMPLES
@given(refused=PAGES, late=PAGES, hot=st.sampled_from(["256MiB", "64KiB", "0"]))
def test_what_a_deadline_leaves_is_exact_and_stays_so(
    talk: Conversation,
    refused: frozenset[tuple[int, str]],
    late: frozenset[tuple[int, str]],
    hot: str,
) -> None:
    disk = PagedDisk()
    queue = RestoreQueue(1 << 30)
    with talk.open(disk, hot_bytes=hot, queue_bytes="1MiB") as store:
        disk.refuse = lambda position, group: named(refused, position, group)
        disk.hold = lambda position, group: named(late, position, group)
        begun = talk.pending(store, queue)
        begun.start()
        taken = begun.take(deadline=0.05)
        position = taken.point.position
        before = position == 0 or talk.is_exact(taken.prompt_cache, position)
        disk.gate.set()
        assert queue.shutdown(30)
        assert before
        assert position == 0 or talk.is_exact(taken.prompt_cache, position)
        assert queue.nbytes == 0
        store.hot.check_integrity()
