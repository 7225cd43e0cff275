"""The store under real faults: `python -m qa.chaos` (with `tests` on the path) runs rounds of each.

Every restored bit is compared with what it must be, every budget is sampled, every call has its
time, and nothing may be left when a round is over.
"""
