#!/usr/bin/env python3
"""Prints what CHANGELOG.md says of a version: the notes of its release.

    scripts/release_notes.py TAG

Fails unless TAG is `v` and the version in pyproject.toml, and the changelog has a section for it.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notes(changelog: str, version: str) -> str:
    """Return the text of a version's section, empty without one."""
    heading = rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def main() -> int:
    (tag,) = sys.argv[1:]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    if tag != f"v{version}":
        print(f"the tag is {tag}, and pyproject.toml has version {version}", file=sys.stderr)
        return 1
    text = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if not text:
        print(f"CHANGELOG.md has no section [{version}]", file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
