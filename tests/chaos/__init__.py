"""The store at ten times its budgets, under real faults, with a checker that knows every bit.

`python -m tests.chaos` from the repository's root, or `make chaos`; docs/reliability.md says what
it does and what it found.
"""
