"""How exactly every family of the zoo is restored: measured, published, and checked again.

`python -m fidelity` (with `tests` on the path) writes `docs/fidelity.csv` and `.md`.
"""
