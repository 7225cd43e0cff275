from functools import cache

import pytest

from kit.workloads import grown
from omlx_cache.simulate.optimum import optimum
from omlx_cache.simulate.requests import Request, Workload


def _best(workload: Workload, room: int) -> int:
    """Try every beginning of every chain that fits, after each request."""
    requests = workload.requests

    @cache
    def serve(at: int, held: frozenset[int]) -> int:
        if at == len(requests):
            return 0
        pages = requests[at].pages
        hits = next((n for n, page in enumerate(pages) if page not in held), len(pages))
        best = 0
        for kept in _kept(held | set(pages), room):
            best = max(best, serve(at + 1, kept))
        return hits + best

    return serve(0, frozenset())


def _kept(pages: frozenset[int], room: int) -> set[frozenset[int]]:
    from itertools import combinations

    size = min(room, len(pages))
    return {frozenset(chosen) for chosen in combinations(sorted(pages), size)}


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("room", [0, 1, 3, 4])
def test_no_choice_of_pages_to_keep_serves_more(seed: int, room: int) -> None:
    drawn = grown(seed, requests=6, talks=2)
    short = [
        Request(r.at, r.pages[:4], min(r.asked, len(r.pages[:4])), r.tokens_in, 0)
        for r in drawn.requests
    ]
    workload = Workload(
        [request._replace(asked=len(request.pages)) for request in short], drawn.pages, 16
    )
    assert optimum(workload, room) == _best(workload, room)


def test_room_for_everything_serves_all_but_what_is_new() -> None:
    workload = grown(3)
    seen: set[int] = set()
    again = 0
    for request in workload.requests:
        asked = request.pages[: request.asked]
        again += next((n for n, page in enumerate(asked) if page not in seen), len(asked))
        seen |= set(request.pages)
    assert optimum(workload, workload.pages) == again


def test_more_room_never_serves_less() -> None:
    workload = grown(11, requests=200)
    served = [optimum(workload, room) for room in range(0, 80, 5)]
    assert served == sorted(served)
