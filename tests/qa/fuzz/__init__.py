"""Hostile bytes for everything that reads bytes: files, their names, documents, messages, texts.

`python -m qa.fuzz` (with `tests` on the path) tries all targets; `--help` says more. A target has
valid samples, ways to spoil them, and an oracle for one input.
"""
