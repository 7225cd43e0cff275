"""What lies beside pages: a namespace's document, however large, and the tag for backups."""

import json
from pathlib import Path

import pytest

from kit.storage import Story, commit_to_disk, disk_usage, open_cold, open_store
from kit.units import DAY, KIB
from omlx_cache.control.cold_files import namespaces
from omlx_cache.identity.namespace import Namespace
from omlx_cache_storage.cold.files import encode_document, has_fields
from omlx_cache_storage.cold.small_files import MAX_DOCUMENT_BYTES

SALT = {"model": "m" * 64, "salt": "text:1"}
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"


def _document(nbytes: int) -> dict[str, object]:
    return {**SALT, "extra": {"prompt": "x" * nbytes}}


@pytest.mark.parametrize("nbytes", [0, 17 * KIB, 900 * KIB, 3 * MAX_DOCUMENT_BYTES])
def test_a_reopened_store_clears_a_namespace_with_a_large_document(
    tmp_path: Path, nbytes: int
) -> None:
    story, document = Story(), _document(nbytes)
    with open_store(tmp_path) as store:
        store.register(Namespace(story.namespace, document))
        commit_to_disk(store, story, 1, 2)
    with open_store(tmp_path) as store:
        assert store.namespaces({**SALT, "salt": "text:2"}) == []
        for wanted in (SALT, {**SALT, "extra": document["extra"]}):
            assert store.namespaces(wanted) == [story.namespace]
        assert store.clear(story.namespace) == 2


def test_a_document_is_whole_up_to_a_mebibyte_and_then_keeps_its_small_fields() -> None:
    whole, bounded = _document(900 * KIB), _document(2 * MAX_DOCUMENT_BYTES)
    assert json.loads(encode_document(whole)) == whole
    shown = json.loads(encode_document(bounded))
    assert {name: shown[name] for name in SALT} == SALT
    assert set(shown["extra"]) == {"omitted", "sha256"}
    assert has_fields(shown, {"extra": bounded["extra"]})
    assert not has_fields(shown, {"extra": whole["extra"]})
    assert not has_fields({}, {"salt": None})


def test_a_large_document_counts_in_the_budget_also_after_a_restart(tmp_path: Path) -> None:
    limit = 2 * 1024 * KIB
    tier = open_cold(tmp_path, limit)
    for turn in range(6):
        story = Story(f"{turn}", nbytes=64 * KIB)
        document = {**_document(700 * KIB), "turn": turn}
        for number in (1, 2):
            tier.write(story.page(number), 10**18 + turn, document)
            assert disk_usage(tmp_path) <= tier.usage().nbytes <= limit
    assert tier.usage().pages > 0
    again = open_cold(tmp_path, limit)
    assert disk_usage(tmp_path) <= again.usage().nbytes <= limit
    assert all(document["salt"] == "text:1" for document in namespaces(tmp_path).values())


def test_a_cold_directory_is_tagged_as_a_cache_and_the_tag_counts(tmp_path: Path) -> None:
    cold, story = tmp_path / "cold", Story()
    tier = open_cold(cold)
    tag = cold / "CACHEDIR.TAG"
    assert not tag.exists(), "whoever opens a store waits for no write"
    assert tier.write(story.page(1), DAY, story.document) == "written"
    assert tag.read_bytes().startswith(SIGNATURE + b"\n")
    assert tag.stat().st_mode & 0o777 == 0o600
    assert disk_usage(cold) <= tier.usage().nbytes
    again = open_cold(cold)
    assert again.usage().nbytes == tier.usage().nbytes
    assert again.usage().pages == 1


def test_a_tag_that_was_there_is_left_alone(tmp_path: Path) -> None:
    tag = tmp_path / "CACHEDIR.TAG"
    tag.write_bytes(SIGNATURE + b"\n# mine\n")
    inode = tag.stat().st_ino
    tier = open_cold(tmp_path)
    assert tag.read_bytes() == SIGNATURE + b"\n# mine\n"
    assert tag.stat().st_ino == inode
    assert disk_usage(tmp_path) <= tier.usage().nbytes


def test_a_namespace_has_the_name_that_the_latest_store_knows(tmp_path: Path) -> None:
    """A program that names no model has its class in the document."""
    story, names = (
        Story(),
        ["mlx_lm.models.qwen3.Model", "toy-1", "mlx_lm.models.qwen3.Model", "toy-2.5"],
    )
    document: dict[str, object] = {**SALT, "extra": {"a": "b"}}
    path = tmp_path / story.namespace.hex() / "namespace.json"
    seen, times = [], set()
    for number, name in enumerate(names, 1):
        with open_store(tmp_path) as store:
            store.register(Namespace(story.namespace, {**document, "label": name}))
            commit_to_disk(store, story, number)
        shown = json.loads(path.read_text())
        seen.append(shown.pop("label"))
        times.add(path.stat().st_mtime_ns)
        assert shown == document
    assert seen == ["mlx_lm.models.qwen3.Model", "toy-1", "toy-1", "toy-2.5"]
    assert len(times) == 1, "it says when the namespace was made"


def test_a_running_store_that_knows_only_the_class_takes_the_name_of_another(
    tmp_path: Path,
) -> None:
    story = Story()
    with open_store(tmp_path) as ours, open_store(tmp_path) as theirs:
        for store, name in ((ours, "mlx_lm.models.qwen3.Model"), (theirs, "toy-1")):
            store.register(Namespace(story.namespace, {**SALT, "label": name}))
        commit_to_disk(ours, story, 1)
        assert ours.readable_document(story.namespace)["label"] == "mlx_lm.models.qwen3.Model"
        commit_to_disk(theirs, story, 2)
        assert ours.readable_document(story.namespace)["label"] == "toy-1"
