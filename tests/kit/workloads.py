"""Small workloads, drawn from a seed."""

import random

from omlx_cache.simulate.traces import Request, Workload


def grown(seed: int, *, requests: int = 60, talks: int = 5, block_size: int = 16) -> Workload:
    """Return conversations that grow, branch and take turns; some share a first part."""
    draw = random.Random(seed)
    fresh = iter(range(10**6))
    roots = [[next(fresh) for _ in range(draw.randint(1, 3))] for _ in range(2)]
    chains = [list(draw.choice(roots)) for _ in range(talks)]
    found = []
    at = 0.0
    for _ in range(requests):
        at += draw.expovariate(0.1)
        chain = draw.choice(chains)
        if draw.random() < 0.15:
            del chain[draw.randint(1, len(chain)) :]
        asked = len(chain) + draw.randint(0, 4)
        chain += [next(fresh) for _ in range(asked - len(chain) + draw.randint(0, 1))]
        found.append(Request(at, list(chain), asked, asked * block_size + 3))
    return Workload(found, next(fresh), block_size)
