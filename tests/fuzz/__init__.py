"""Hostile bytes for everything that reads bytes: files, their names, documents, frames, texts.

`python -m fuzz` (with `tests` on the path) tries all targets; `--help` says more. A target is a
module with a `TARGET`: valid samples, ways to spoil them, and an oracle for one input.
"""
