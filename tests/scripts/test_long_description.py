"""What a release shows: the README, with links that work there, and its part of the changelog."""

import re
from email import message_from_string

from hatchling.metadata.core import ProjectMetadata
from hatchling.metadata.spec import get_core_metadata_constructors
from hatchling.plugin.manager import PluginManager

from hatch_build import published
from kit.trees import ROOT
from scripts.release_notes import notes

TEXT = """[clients](docs/servers.md#clients), [MLX](https://github.com/ml-explore/mlx), [below](#x).

![a plot](docs/replay.svg)

```python
layers[0](tokens)
```
"""
CHANGELOG = """# Changelog

## [Unreleased]

- later

## [1.2.3] - 2026-12-01

### Added

- this

## [1.2.2] - 2026-11-01

- before
"""


def test_without_a_repository_relative_links_are_their_words() -> None:
    assert published(TEXT, None) == TEXT.replace(
        "[clients](docs/servers.md#clients)", "clients"
    ).replace("![a plot](docs/replay.svg)", "*a plot*")


def test_with_a_repository_they_lead_there() -> None:
    text = published(TEXT, "https://example.org/a/b/")
    assert "[clients](https://example.org/a/b/blob/HEAD/docs/servers.md#clients)" in text
    assert "![a plot](https://example.org/a/b/raw/HEAD/docs/replay.svg)" in text
    assert "layers[0](tokens)" in text
    assert "[below](#x)" in text


def test_the_metadata_have_the_readme_without_links_that_lead_nowhere() -> None:
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    message = message_from_string(get_core_metadata_constructors()["2.4"](metadata))
    assert message["Description-Content-Type"] == "text/markdown"
    body = message.get_payload()
    assert isinstance(body, str)
    assert "# omlx-cache" in body
    prose = re.sub(r"```.*?```", "", body, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    assert targets
    assert [each for each in targets if "://" not in each and not each.startswith("#")] == []


def test_a_version_has_its_own_section_and_no_more() -> None:
    assert notes(CHANGELOG, "1.2.3") == "### Added\n\n- this"
    assert notes(CHANGELOG, "1.2.2") == "- before"
    assert notes(CHANGELOG, "1.2") == notes(CHANGELOG, "Unreleased.") == ""
