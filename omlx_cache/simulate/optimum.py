"""The most that any policy could have served: Belady's MIN with bypass, for chains of pages.

A page leaves whose next use is farthest, of equal ones the deepest; a new page whose next use is no
nearer is not taken. What is kept of a chain is then always its beginning. Pages are of one size.
Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.
"""

from heapq import heapify, heappop, heappush

from omlx_cache.simulate.traces import Workload

_NEVER = 0


def next_uses(workload: Workload) -> list[list[int]]:
    """Return, for each page of each request, which request asks for it next, counted from the end
    of the trace; 0 when none does."""
    count = len(workload.requests)
    coming = [_NEVER] * workload.pages
    found: list[list[int]] = [[]] * count
    for at in range(count - 1, -1, -1):
        request = workload.requests[at]
        pages = request.pages
        found[at] = [coming[page] for page in pages]
        for page in pages[: request.asked]:
            coming[page] = count - at
    return found


def optimum(workload: Workload, room: int, uses: list[list[int]]) -> int:
    """Return how many of the pages that were asked for a cache of `room` pages could have served.

    `uses` are those of `next_uses`.
    """
    longest = max((len(request.pages) for request in workload.requests), default=0)
    depth_bits, page_bits = (longest + 1).bit_length(), workload.pages.bit_length() + 1
    page_mask, use_shift = (1 << page_bits) - 1, depth_bits + page_bits
    deepest = (1 << depth_bits) - 1
    # The next use of what is kept, 0 for what is not; smaller is farther away.
    kept = [_NEVER] * workload.pages
    held = served = 0
    # The farthest and deepest first: (next use, depth from below, page), stale ones among them.
    heap: list[int] = []
    for request, nexts in zip(workload.requests, uses, strict=True):
        pages = request.pages
        asked = pages[: request.asked]
        served += next((n for n, page in enumerate(asked) if not kept[page]), len(asked))
        reached = True
        for depth, (page, use) in enumerate(zip(pages, nexts, strict=True)):
            before = kept[page]
            if use == _NEVER:
                if before:
                    kept[page] = _NEVER
                    held -= 1
                reached = False
                continue
            if not before:
                if not reached:
                    break
                if held >= room:
                    while heap and kept[heap[0] & page_mask] != heap[0] >> use_shift:
                        heappop(heap)
                    if not heap or heap[0] >> use_shift >= use:
                        break
                    kept[heappop(heap) & page_mask] = _NEVER
                    held -= 1
                held += 1
            kept[page] = use
            heappush(heap, (use << use_shift) | ((deepest - depth) << page_bits) | page)
        if len(heap) > 4 * held + 1024:
            heap = [one for one in heap if kept[one & page_mask] == one >> use_shift]
            heapify(heap)
    return served
