"""The remote tier's settings: read, checked when a store opens, and secret where they must be."""

import json
from pathlib import Path

import pytest

from omlx_cache.settings import CacheSettings, ConfigError

PASSWORD = "hunter2-of-this-test"
SECRET = "a secret of more than 16 characters"


def test_no_password_and_no_secret_is_shown() -> None:
    settings = CacheSettings(
        remote=f"redis://me:{PASSWORD}@nas:6380/2", remote_password=PASSWORD, remote_secret=SECRET
    )
    sources = [source.to_dict() for source in settings.sources().values()]
    options = settings.remote_options("cpu x86_64")
    shown = f"{settings!r} {settings} {json.dumps(sources)} {options!r}"
    shown += f"{settings.model_dump()} {settings.model_dump_json()}"
    assert PASSWORD not in shown
    assert SECRET not in shown
    assert settings.sources()["remote"].rendered == "redis://me:***@nas:6380/2"


def test_a_refused_url_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_CACHE_REMOTE", f"http://me:{PASSWORD}@nas")
    with pytest.raises(ConfigError, match=r"OMLX_CACHE_REMOTE: .* expected redis://") as refused:
        CacheSettings()
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("none", ["", "off", "OFF"])
def test_without_a_remote_nothing_is_opened(none: str) -> None:
    assert CacheSettings(remote=none).remote_options("cpu") is None


def test_options_are_what_was_set() -> None:
    settings = CacheSettings(
        remote="redis://nas?prefix=/lab/kv/&ttl=60",
        remote_password=PASSWORD,
        remote_secret=SECRET,
        remote_lookup_seconds=0.1,
    )
    options = settings.remote_options("gpu applegpu_g15s")
    assert (options.password, options.secret) == (PASSWORD, SECRET.encode())
    assert (options.prefix, options.ttl_seconds, options.packs) == ("lab/kv", 60, False)
    assert (options.lookup_seconds, options.read_seconds) == (0.1, 0.4)
    assert settings.sources()["remote"].rendered == "redis://nas:6379?prefix=lab/kv&ttl=60"
    assert options.architecture == "gpu-applegpu_g15s"
    packing = settings.remote_options("cpu", has_zstd=True)
    assert packing.packs


def test_secrets_come_from_files_of_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\nnot this line\n")
    for name in ("FILE:", " file:", "file:"):
        settings = CacheSettings(remote="redis://nas", remote_secret=f"{name}{file}")
        assert settings.sources()["remote_secret"].rendered == f"file:{file}"
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"remote_secret: others may read .*chmod 600"):
        settings.remote_options("cpu")
    file.chmod(0o600)
    options = settings.remote_options("cpu")
    assert options.secret == SECRET.encode()


def test_a_shared_directory_needs_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shared only with a secret"):
        CacheSettings(remote=f"file://{tmp_path}").remote_options("cpu")
    assert CacheSettings(remote=f"file://{tmp_path}", remote_secret=SECRET).remote_options("cpu")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"remote_secret": "short"}, "at least 16 bytes"),
        ({"remote_encrypt": True}, "needs a shared secret"),
    ],
)
def test_what_cannot_protect_is_refused(bad: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CacheSettings(remote="redis://nas", **bad).remote_options("cpu")


def test_machines_of_another_kind_share_only_where_they_are_asked_to() -> None:
    assert CacheSettings().architecture("cpu x86_64") == "cpu x86_64"
    assert CacheSettings(remote_architecture="ANY").architecture("cpu x86_64") == "any"
    assert CacheSettings(remote_architecture="M3").architecture("cpu x86_64") == "M3"
