"""`Keep` says what a plain model of its definition says, whatever happens to pages."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.storage import Story
from kit.units import SECOND
from omlx_cache_storage.eviction import keep
from omlx_cache_storage.eviction.keep import (
    BUCKETS,
    SUPERSEDED_NS,
    YOUNGEST_SECONDS,
    Keep,
    bucket_of,
)

STORY = Story(blocks=40)
PAGES = STORY.ids(*range(1, 25))
ENOUGH = 30
WIDTHS = [YOUNGEST_SECONDS * 2 ** ((b + 1) / 3) for b in range(BUCKETS)]
WIDTHS = [end - start for start, end in zip([0.0, *WIDTHS[:-1]], WIDTHS, strict=True)]


class Plain:
    """Every use and every waiting page by itself; patience by the definition."""

    def __init__(self) -> None:
        self.uses: list[tuple[int, float]] = []
        self.here: dict[int, int] = {}
        self.ghosts: dict[int, int] = {}
        self.requests = self.seen = 0
        self.least, self.most = 0.0, 0.0

    def request(self, now: int) -> None:
        self.requests += 1
        if self.requests % 50 == 0:
            self.uses = [(bucket, weight * 0.9) for bucket, weight in self.uses]
        if self.requests % 16 == 0 and self.seen >= ENOUGH:
            oldest = now - 600 * SECOND
            ghosts = [stamp for stamp in self.ghosts.values() if stamp >= oldest]
            stamps = [*self.here.values(), *ghosts]
            ages = [bucket_of((now - s) / 1e9) for s in stamps if s > SUPERSEDED_NS]
            self.least, self.most = (self.patience(ages, slack) for slack in (1e-9, -1e-9))

    def use(self, before: int, now: int) -> None:
        self.uses.append((bucket_of((now - before) / 1e9), 1.0))
        self.seen += 1

    def patience(self, waiting: list[int], slack: float) -> float:
        spent = [0.0] * BUCKETS
        for bucket, weight in [*self.uses, *((bucket, 1.0) for bucket in waiting)]:
            for passed in range(bucket):
                spent[passed] += weight * WIDTHS[passed]
            spent[bucket] += weight * WIDTHS[bucket] / 2

        came = [sum(weight for one, weight in self.uses if one == b) for b in range(BUCKETS)]

        def best(first: int) -> float:
            rates = [0.0]
            used = seconds = 0.0
            for bucket in range(first, BUCKETS):
                used, seconds = used + came[bucket], seconds + spent[bucket]
                if seconds:
                    rates.append(used / seconds)
            return max(rates)

        fresh = best(bucket_of(1.0))
        worth = [b for b in range(BUCKETS) if fresh and best(b) >= fresh * (1 + slack)]
        half = sum(came) / 2 * (1 - slack)
        share = next(b for b in range(BUCKETS) if sum(came[: b + 1]) >= half)
        last = min(share, max(worth, default=bucket_of(1.0)))
        seconds: float = YOUNGEST_SECONDS * 2 ** ((last + 1) / 3)
        return min(600.0, seconds) if seconds > 1.0 else 0.0


@settings(max_examples=examples(15))
@given(st.data())
def test_the_patience_is_that_of_a_plain_model(data: st.DataObject) -> None:
    policy, plain = Keep(), Plain()
    draw = data.draw(st.randoms(use_true_random=False))
    gaps = data.draw(
        st.lists(st.sampled_from([0.2, 0.9, 3, 8, 20, 45, 200, 900]), min_size=1, max_size=3)
    )
    now = 10**18
    enough, keep.ENOUGH_USES = keep.ENOUGH_USES, ENOUGH
    try:
        for _ in range(data.draw(st.sampled_from([20, 70, 130]))):
            now += int(draw.choice(gaps) * draw.uniform(0.5, 1.5) * SECOND)
            wanted = draw.sample(range(len(PAGES)), draw.randint(1, 8))
            absent = [page for page in wanted if page not in plain.here]
            plain.request(now)
            policy.wanted([PAGES[page] for page in absent], now)
            for page in absent:
                before = plain.ghosts.pop(page, None)
                if before is not None and now - before < 600 * SECOND:
                    plain.use(before, now)
            for page in wanted:
                if page in plain.here:
                    before = plain.here[page]
                    policy.moved(before, now, used=True)
                    if before > SUPERSEDED_NS:
                        plain.use(before, now)
                    plain.here[page] = now
                elif draw.random() < 0.6:
                    policy.added(now)
                    plain.here[page] = now
                else:
                    policy.refused([PAGES[page]], now)
                    plain.ghosts[page] = now
            for page in draw.sample(sorted(plain.here), min(len(plain.here), draw.randint(0, 3))):
                before = plain.here[page]
                if draw.random() < 0.2:
                    policy.moved(before, SUPERSEDED_NS - 5, used=False)
                    plain.here[page] = SUPERSEDED_NS - 5
                else:
                    policy.left(PAGES[page], before)
                    del plain.here[page]
                    if before > SUPERSEDED_NS:
                        plain.ghosts[page] = before
            assert plain.least - 1e-3 <= policy.patience_ns / SECOND <= plain.most + 1e-3
    finally:
        keep.ENOUGH_USES = enough
