"""The token of the status paths: taken from where it belongs, and shown nowhere."""

import json

import pytest

from omlx_cache.settings import CacheSettings, ConfigError

TOKEN = "a-secret-of-this-test"


def test_a_token_is_not_in_what_a_person_or_a_log_sees() -> None:
    settings = CacheSettings(status_token=TOKEN)
    assert settings.token == TOKEN
    source = settings.sources()["status_token"]
    shown = (
        f"{settings!r} {settings} {settings.model_dump()} {source} {json.dumps(source.to_dict())}"
    )
    assert TOKEN not in shown
    assert source.rendered == "(hidden)"


@pytest.mark.parametrize("bad", ["short", "with a blank in it", "größer als ASCII", "x" * 257])
def test_a_refused_token_is_not_repeated(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_CACHE_STATUS_TOKEN", bad)
    with pytest.raises(ConfigError, match="8 to 256 visible ASCII") as refused:
        CacheSettings()
    assert bad not in str(refused.value)


@pytest.mark.parametrize("none", ["", "off", "OFF"])
def test_without_a_token_there_is_none(none: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_CACHE_STATUS_TOKEN", none)
    settings = CacheSettings()
    assert settings.token is None
    assert settings.sources()["status_token"].rendered == "off"


def test_status_is_a_switch() -> None:
    assert CacheSettings().status == "off"
    assert CacheSettings(status=True).status == "on"
    assert CacheSettings(status="ON").status == "on"
    assert CacheSettings(status=9321).status == CacheSettings(status="9321").status == 9321
