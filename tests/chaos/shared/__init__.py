"""One directory, many processes: writers and readers of it that are killed and started again.

`python -m tests.chaos shared` runs it; docs/reliability.md says what counts.
"""
