import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.storage import open_cold
from omlx_cache_storage.keys import BlockKey, namespace_digest
from omlx_cache_storage.page import Page, PageMeta, TensorSpec

Cli = Callable[..., Any]
StartStore = Callable[..., Any]

_DOCUMENTS = {"llama": {"model_id": "llama\x1b[31m"}, "nameless": {"model": "f" * 64}}


def _key(text: str) -> BlockKey:
    return BlockKey(hashlib.sha256(text.encode()).digest())


def _digest(model: str) -> str:
    return namespace_digest(_DOCUMENTS[model]).hex()


def _page(model: str, group: str, block: int, tokens: int) -> Page:
    meta = PageMeta(
        namespace=namespace_digest(_DOCUMENTS[model]),
        key=_key(f"{model} {block}"),
        parent=_key(f"{model} {block - 1}"),
        group=group,
        position=(block + 1) * 256,
        held=tokens,
        tail=False,
        codec="dense",
        tensors=(TensorSpec("0.keys", "BF16", (1, 2, 256, 8)),),
    )
    return Page(meta, bytes(range(256)) * (meta.nbytes // 256))


@pytest.fixture
def cold_dir(tmp_path: Path) -> Path:
    """Two blocks of a hybrid model (paged and state) and one of another model."""
    tier = open_cold(tmp_path / "cold")
    pages = [
        ("llama", _page("llama", "paged", 0, 256)),
        ("llama", _page("llama", "paged", 1, 256)),
        ("llama", _page("llama", "state", 1, 0)),
        ("nameless", _page("nameless", "paged", 0, 256)),
    ]
    for model, page in pages:
        assert tier.write(page, 10**18, _DOCUMENTS[model]) == "written"
    return tmp_path / "cold"


def test_ls_reads_the_cold_directory_when_nothing_runs(cli: Cli, cold_dir: Path) -> None:
    result = cli("ls", "--format", "json")
    assert result.code == 0
    assert f"no store is running; reading {cold_dir}" in result.err
    found = {entry["namespace"]: entry for entry in json.loads(result.out)}
    llama = found[_digest("llama")]
    assert (llama["pages"], llama["tokens"], llama["groups"]) == (3, 512, ["paged", "state"])
    assert llama["tiers"] == ["cold"]
    files = (cold_dir / _digest("llama")).rglob("*.safetensors")
    assert llama["bytes"] == sum(f.stat().st_blocks * 512 for f in files)
    assert found[_digest("nameless")]["label"] == "f" * 12


def test_ls_lists_the_pages_of_a_namespace_in_token_order(cli: Cli, cold_dir: Path) -> None:
    result = cli("ls", _digest("llama")[:10], "--format", "json")
    pages = json.loads(result.out)
    assert [(page["position"], page["group"]) for page in pages] == [
        (256, "paged"),
        (512, "paged"),
        (512, "state"),
    ]
    assert pages[0]["key"] == _key("llama 0").hex()
    assert len(cli("ls", _digest("llama"), "--limit", "2").out.splitlines()) == 3


def test_names_in_files_cannot_control_the_terminal(cli: Cli, cold_dir: Path) -> None:
    shown = cli("ls").out
    assert "llama" in shown
    assert "\x1b" not in shown


def test_an_unknown_namespace_is_a_failure(cli: Cli, cold_dir: Path) -> None:
    digests = {_digest("llama")[0], _digest("nameless")[0]}
    missing = next(digit for digit in "0123456789abcdef" if digit not in digests)
    result = cli("ls", missing)
    assert (result.code, result.out) == (1, "")
    assert f"no namespace begins with {missing}" in result.err


def test_inspect_shows_what_the_files_say(cli: Cli, cold_dir: Path) -> None:
    key = _key("llama 1").hex()
    pages = json.loads(cli("inspect", key[:12], "--format", "json").out)
    assert {page["group"] for page in pages} == {"paged", "state"}
    for page in pages:
        assert page["key"] == key
        assert page["parent"] == _key("llama 0").hex()
        assert page["tensors"] == [{"name": "0.keys", "dtype": "BF16", "shape": [1, 2, 256, 8]}]
        assert Path(page["path"]).is_file()
    assert "1 x 2 x 256 x 8" in cli("inspect", key[:12]).out


def test_a_damaged_page_is_shown_with_its_error_and_1(cli: Cli, cold_dir: Path) -> None:
    key = _key("nameless 0").hex()
    path = next(cold_dir.rglob(f"{key}*"))
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    result = cli("inspect", key, "--format", "json")
    assert result.code == 1
    assert json.loads(result.out)[0]["error"].startswith("corrupt: ")


def test_a_key_that_no_page_has_is_a_failure(cli: Cli, cold_dir: Path) -> None:
    result = cli("inspect", "0" * 64)
    assert (result.code, result.out) == (1, "")


def test_no_store_and_no_directory_is_69_and_nothing_is_made(cli: Cli, tmp_path: Path) -> None:
    for arguments in (("ls",), ("ls", "ab"), ("inspect", "ab")):
        result = cli(*arguments)
        assert (result.code, result.out) == (69, "")
        assert str(tmp_path / "cold") in result.err
    assert not (tmp_path / "cold").exists()


def test_a_named_directory_is_read_even_when_a_store_runs(
    cli: Cli, cold_dir: Path, start_store: StartStore
) -> None:
    start_store()
    asked = json.loads(cli("ls", "--format", "json").out)
    read = cli("ls", "--cold-dir", str(cold_dir), "--format", "json")
    assert asked[0]["namespace"] == "cd" * 32
    assert _digest("llama") in {entry["namespace"] for entry in json.loads(read.out)}
    assert read.err == ""


def test_a_store_asked_for_by_name_is_not_replaced_by_the_directory(
    cli: Cli, cold_dir: Path
) -> None:
    assert cli("ls", "--pid", "1").code == 69
    assert cli("inspect", "ab", "--socket", "/nowhere").code == 69


def test_an_empty_cold_dir_variable_is_78(cli: Cli) -> None:
    result = cli("ls", OMLX_CACHE_COLD_DIR="")
    assert result.code == 78
    assert "OMLX_CACHE_COLD_DIR: got ''" in result.err


@pytest.mark.parametrize("arguments", [("ls",), ("ls", "ab"), ("inspect", "ab")], ids=" ".join)
def test_a_directory_that_cannot_be_examined_is_a_failure_with_its_reason(
    cli: Cli, arguments: tuple[str, ...]
) -> None:
    # Permissions do not stop root, and tests may run as root; the length of a name does.
    result = cli(*arguments, "--cold-dir", "/tmp/" + "x" * 300)
    assert (result.code, result.out) == (1, "")
    assert "File name too long" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "text",
    some(
        [
            "[" * 500_000 + "]" * 500_000,
            '{"label": ' + "[" * 900 + "]" * 900 + "}",
            '{"label": ' + '{"a":' * 900 + "1" + "}" * 900 + "}",
            '{"label": ' + "9" * 900_000 + "}",
            '{"label": "' + "x" * 900_000 + '"}',
        ],
        "[" * 500_000 + "]" * 500_000,
    ),
)
def test_a_document_that_is_deep_or_long_hinders_neither_ls_nor_rm(
    cli: Cli, cold_dir: Path, text: str
) -> None:
    digest = _digest("llama")
    (cold_dir / digest / "namespace.json").write_text(text)
    listed = cli("ls", "--format", "json")
    assert listed.code == 0
    (row,) = (row for row in json.loads(listed.out) if row["namespace"] == digest)
    assert len(row["label"]) <= 200
    assert cli("ls").code == 0
    assert cli("rm", digest, "--yes").code == 0
    assert not list((cold_dir / digest).rglob("*.safetensors"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_another_users_directory_is_said_to_be_that(cli: Cli, cold_dir: Path) -> None:
    os.chown(cold_dir, 12_345, 12_345)
    for command in (("ls",), ("rm", _digest("llama"), "--yes")):
        result = cli(*command)
        assert result.code == 1
        assert "belongs to user 12345" in result.err
