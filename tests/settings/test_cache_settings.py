import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from omlx_cache.settings import CacheSettings, ConfigError, Machine
from omlx_cache.settings.machine import DiskSpace
from omlx_cache_storage.remote.address import parse_address


def test_every_setting_is_a_variable(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "block_size": ("32", 32),
        "hot_bytes": ("1.5 GiB", 3 * 2**29),
        "hot_cache_only": ("yes", True),
        "cold_dir": ("/srv/kv", Path("/srv/kv")),
        "cold_bytes": ("512MB", 512_000_000),
        "min_free_bytes": ("0", 0),
        "write_policy": ("lazy", "lazy"),
        "daily_write_bytes": ("50GB", 50_000_000_000),
        "queue_bytes": ("64MiB", 2**26),
        "commit_wait_seconds": ("0.5", 0.5),
        "worth_reading": ("OFF", "off"),
        "prepare": ("Off", "off"),
        "durability": ("full", "full"),
        "codec": ("dense", "dense"),
        "cold_codec": ("dense", "dense"),
        "min_quantize_tokens": ("0", 0),
        "snapshot_stride": ("512", 512),
        "trace": ("/var/log/requests", Path("/var/log/requests")),
        "socket": ("/run/x.sock", Path("/run/x.sock")),
        "status": ("9000", 9000),
        "status_token": ("a-long-token", SecretStr("a-long-token")),
        "log_level": ("DEBUG", "debug"),
        "remote": ("valkey://nas", parse_address("valkey://nas")),
        "remote_password": ("pass word", SecretStr("pass word")),
        "remote_secret": ("sixteen letters.", SecretStr("sixteen letters.")),
        "remote_encrypt": ("yes", True),
        "remote_writes": ("Shared", "shared"),
        "remote_lookup_seconds": ("0.1", 0.1),
        "remote_architecture": ("ANY", "any"),
        "require": ("yes", True),
    }
    for name, (text, _) in values.items():
        monkeypatch.setenv(f"OMLX_CACHE_{name.upper()}", text)
    settings = CacheSettings(machine=machine)
    assert {name: getattr(settings, name) for name in settings.sources()} == {
        name: value for name, (_, value) in values.items()
    }
    assert {source.kind for source in settings.sources().values()} == {"environment"}


def test_sources_say_where_each_value_came_from(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_COLD_BYTES", "2GiB")
    sources = CacheSettings(machine=machine, codec="dense").sources()
    assert sources["codec"].origin == "argument"
    assert sources["cold_bytes"].origin == "environment OMLX_CACHE_COLD_BYTES"
    assert sources["cold_bytes"].rendered == "2 GiB"
    assert sources["durability"].origin == "default"
    assert sources["hot_bytes"].origin == "derived (1/8 of 32 GiB, physical memory)"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("block_size", 15, "a whole number from 16 to 4096"),
        ("block_size", 4097, "a whole number from 16 to 4096"),
        ("block_size", "many", "a whole number from 16 to 4096"),
        ("hot_bytes", "4G", "4GiB"),
        ("hot_bytes", "-1", "4GiB"),
        ("cold_bytes", "lots", "auto"),
        ("hot_cache_only", "perhaps", "true or false"),
        ("cold_dir", "", "a directory"),
        ("write_policy", "sometimes", "through or lazy"),
        ("durability", "ssd", "none, fsync or full"),
        ("codec", "jpeg", "dense"),
        ("min_quantize_tokens", "-1", "a whole number, 0 or more"),
        ("snapshot_stride", 0, "a whole number, 1 or more"),
        ("commit_wait_seconds", 86401, "a number from 0 to 86400"),
        ("socket", "/" + "x" * 103, "at most 103 bytes"),
        ("status", "yes", "on, off, or a port from 1 to 65535"),
        ("status", 0, "on, off, or a port from 1 to 65535"),
        ("status", 65536, "on, off, or a port from 1 to 65535"),
        ("log_level", "loud", "debug, info, warning, error or critical"),
    ],
)
@pytest.mark.parametrize("form", ["argument", "variable"])
def test_a_bad_value_names_the_setting_what_came_and_what_is_allowed(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    name: str,
    value: object,
    allowed: str,
) -> None:
    arguments: dict[str, object] = {}
    if form == "argument":
        arguments[name] = value
        beginning = f"{name}: got {value!r}"
    else:
        monkeypatch.setenv(f"OMLX_CACHE_{name.upper()}", str(value))
        beginning = f"OMLX_CACHE_{name.upper()}: got {str(value)!r}"
    with pytest.raises(ConfigError) as caught:
        CacheSettings(machine=machine, **arguments)
    text = str(caught.value)
    assert text.startswith(beginning)
    assert allowed in text.partition("allowed: ")[2]
    assert "\n" not in text, "values derived from a refused one are not reported"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["cold_dir", "socket", "trace"])
def test_a_path_that_is_no_path_is_named(machine: Machine, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: got 5 .*; allowed: "):
        CacheSettings(machine=machine, **{name: 5})


def test_all_bad_values_are_reported_together(machine: Machine) -> None:
    with pytest.raises(ConfigError) as caught:
        CacheSettings(machine=machine, block_size=1, codec="md5")
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "block_size",
        "codec",
    ]


@pytest.mark.parametrize(
    ("misspelt", "nearest"),
    [
        ("OMLX_CACHE_HOTBYTES", "OMLX_CACHE_HOT_BYTES"),
        ("OMLX_CACHE_BLOCKSIZE", "OMLX_CACHE_BLOCK_SIZE"),
        ("omlx_cache_cold_dir", "OMLX_CACHE_COLD_DIR"),
        ("OMLX_CACHE_RUN_DIR", "OMLX_CACHE_RUNTIME_DIR"),
        ("OMLX_CACHE_MACHINE", "OMLX_CACHE_"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, misspelt: str, nearest: str
) -> None:
    monkeypatch.setenv(misspelt, "1")
    with pytest.raises(ConfigError, match=f"^{misspelt}: unknown variable.* {nearest}"):
        CacheSettings(machine=machine)


def test_an_unknown_keyword_is_refused_with_the_nearest_name(machine: Machine) -> None:
    with pytest.raises(ConfigError, match=r"^hot_byte: unknown setting; .* hot_bytes$"):
        CacheSettings(machine=machine, hot_byte=1)


def test_no_directory_is_made(machine: Machine, tmp_path: Path) -> None:
    CacheSettings(machine=machine, cold_dir=tmp_path / "cold")
    CacheSettings(machine=machine)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_absolute_and_knows_home(machine: Machine, tmp_path: Path) -> None:
    assert CacheSettings(machine=machine, cold_dir="~/kv").cold_dir == tmp_path / "kv"
    assert CacheSettings(machine=machine, cold_dir="kv").cold_dir == Path.cwd() / "kv"


def test_cold_settings_are_allowed_and_noted_when_everything_stays_in_memory(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_COLD_BYTES", "1GiB")
    settings = CacheSettings(machine=machine, hot_cache_only=True, cold_dir="/srv/kv")
    assert [note.partition(" ")[0] for note in settings.notes()] == [
        "cold_dir",
        "OMLX_CACHE_COLD_BYTES",
    ]
    assert CacheSettings(machine=machine, cold_dir="/srv/kv", cold_bytes="1MiB").notes() == []


def test_a_token_without_the_status_paths_is_noted(machine: Machine) -> None:
    (note,) = CacheSettings(machine=machine, status_token="a" * 16).notes()
    assert note == "status_token opens nothing while status is off (--status of serve)"
    assert CacheSettings(machine=machine, status_token="a" * 16, status="on").notes() == []


@pytest.mark.parametrize(
    ("name", "value", "smallest"), [("cold_bytes", "8", 96 << 10), ("hot_bytes", 512, 16 << 10)]
)
def test_a_budget_without_room_for_a_page_is_a_forgotten_unit(
    machine: Machine, name: str, value: object, smallest: int
) -> None:
    """A store that went by it would delete everything on the disk."""
    for refused in (value, smallest - 1):
        with pytest.raises(ConfigError, match="has no room for a page: give a unit, as in 40GiB"):
            CacheSettings(machine=machine, **{name: refused})
    for nbytes in (0, smallest):
        assert getattr(CacheSettings(machine=machine, **{name: nbytes}), name) == nbytes
    full = replace(machine, disk=lambda path: DiskSpace(1000 * 2**30, 32))
    assert CacheSettings(machine=full).cold_bytes == 8


def test_a_budget_that_keeps_nothing_is_noted(machine: Machine) -> None:
    for name, fields in {
        "cold_bytes": {"cold_bytes": 0},
        "queue_bytes": {"queue_bytes": 0, "hot_bytes": 0},
        "hot_bytes": {"hot_bytes": 0, "hot_cache_only": True},
    }.items():
        (note,) = CacheSettings(machine=machine, cold_dir="/srv/kv", **fields).empty_budgets()
        assert note.startswith(name)
        assert "nothing will be kept" in note
    assert CacheSettings(machine=machine, cold_dir="/srv/kv", hot_bytes=0).empty_budgets() == []


def test_a_full_disk_is_not_said_to_keep_nothing(machine: Machine) -> None:
    """It may have pages, which are restored, and new ones are written in their place."""
    full = replace(machine, disk=lambda path: DiskSpace(1000 * 2**30, 0))
    (note,) = CacheSettings(machine=full, cold_dir="/srv/kv").empty_budgets()
    assert note.startswith("the disk of /srv/kv leaves the cache no room")
    assert "nothing will be kept" not in note


def test_settings_travel_to_another_process() -> None:
    settings = CacheSettings(block_size=64, hot_bytes="1GiB")
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.sources() == settings.sources()


def test_a_ration_without_a_disk_is_noted(machine: Machine) -> None:
    (note,) = CacheSettings(machine=machine, hot_cache_only=True, daily_write_bytes="1GB").notes()
    assert note.startswith("daily_write_bytes is ignored")
