from dataclasses import replace
from pathlib import Path

import pytest

from kit.units import GIB
from omlx_cache.settings import CacheSettings, DiskSpace, Machine
from omlx_cache.settings.derived import restore_share, snapshot_share
from omlx_cache.settings.machine import cold_dir_from_environment


def test_a_32_gb_mac_gets_an_eighth_of_its_memory_and_at_most_128_gib_of_disk(
    machine: Machine,
) -> None:
    settings = CacheSettings(machine=machine)
    assert settings.hot_bytes == 4 * GIB
    assert settings.cold_bytes == 100 * GIB
    assert settings.queue_bytes == GIB
    assert settings.min_free_bytes == 10 * GIB
    assert settings.cold_dir == machine.home / "Library" / "Caches" / "omlx-cache"


def test_a_large_disk_is_capped_and_a_small_one_shared(machine: Machine) -> None:
    large = replace(machine, disk=lambda path: DiskSpace(8000 * GIB, 4000 * GIB))
    small = replace(machine, disk=lambda path: DiskSpace(100 * GIB, 8 * GIB))
    assert CacheSettings(machine=large).cold_bytes == 128 * GIB
    assert CacheSettings(machine=small).cold_bytes == 2 * GIB
    assert CacheSettings(machine=small).min_free_bytes == 5 * GIB


def test_a_control_group_limit_counts_when_it_is_lower(machine: Machine) -> None:
    limited = replace(machine, limit_bytes=8 * GIB)
    roomy = replace(machine, limit_bytes=64 * GIB)
    assert CacheSettings(machine=limited).hot_bytes == GIB
    assert CacheSettings(machine=roomy).hot_bytes == 4 * GIB
    assert "control group" in CacheSettings(machine=limited).sources()["hot_bytes"].origin


def test_values_derived_from_another_setting_follow_it(machine: Machine) -> None:
    settings = CacheSettings(machine=machine, hot_bytes="1GiB")
    assert settings.queue_bytes == GIB // 4


def test_restores_that_are_begun_share_an_eighth_of_what_the_control_group_allows(
    machine: Machine,
) -> None:
    assert restore_share(machine) == 4 * GIB
    assert restore_share(replace(machine, limit_bytes=8 * GIB)) == GIB


def test_the_disk_of_the_chosen_directory_is_asked(machine: Machine, tmp_path: Path) -> None:
    asked: list[Path] = []

    def disk(path: Path) -> DiskSpace:
        asked.append(path)
        return DiskSpace(100, 100)

    CacheSettings(machine=replace(machine, disk=disk), cold_dir=tmp_path / "here")
    assert set(asked) == {tmp_path / "here"}


def test_auto_as_an_argument_overrides_the_environment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_HOT_BYTES", "1GiB")
    settings = CacheSettings(machine=machine, hot_bytes="auto")
    assert settings.hot_bytes == 4 * GIB
    assert settings.sources()["hot_bytes"].kind == "derived"


def test_hot_cache_only_grants_no_disk_and_asks_for_none(machine: Machine) -> None:
    def disk(path: Path) -> DiskSpace:
        raise AssertionError("no disk is needed")

    settings = CacheSettings(machine=replace(machine, disk=disk), hot_cache_only=True)
    assert (settings.cold_bytes, settings.min_free_bytes, settings.queue_bytes) == (0, 0, 0)


def test_a_derived_cold_budget_does_not_shrink_as_the_cache_fills(machine: Machine) -> None:
    empty = CacheSettings(machine=machine)
    filled_disk = replace(machine, disk=lambda path: DiskSpace(1000 * GIB, 300 * GIB))
    filled = CacheSettings(machine=filled_disk)
    assert filled.cold_bytes < empty.cold_bytes
    assert filled.cold_budget(100 * GIB) == empty.cold_budget(0) == 100 * GIB


@pytest.mark.parametrize(("free", "budget"), [(60, 90), (4, 84), (300, 97)])
def test_a_disk_that_others_filled_costs_no_more_pages_than_its_free_space_needs(
    machine: Machine, free: int, budget: int
) -> None:
    crowded = replace(machine, disk=lambda path: DiskSpace(1000 * GIB, free * GIB))
    assert CacheSettings(machine=crowded).cold_budget(90 * GIB) // GIB == budget


def test_the_command_line_finds_the_directory_that_the_settings_choose(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in (None, "auto", "~/kept", "/srv/cache"):
        environ = {} if given is None else {"OMLX_CACHE_COLD_DIR": given}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        found = cold_dir_from_environment("Darwin", environ, machine.home)
        assert found == CacheSettings(machine=machine).cold_dir


def test_xdg_cache_home_counts_on_linux_when_it_is_absolute(tmp_path: Path) -> None:
    home = Path("/home/u")
    absolute = cold_dir_from_environment("Linux", {"XDG_CACHE_HOME": "/var/x"}, home)
    relative = cold_dir_from_environment("Linux", {"XDG_CACHE_HOME": "x"}, home)
    assert absolute == Path("/var/x/omlx-cache")
    assert relative == home / ".cache" / "omlx-cache"


def test_queue_and_snapshots_have_room_even_without_a_hot_tier(machine: Machine) -> None:
    settings = CacheSettings(machine=machine, hot_bytes=0)
    assert (settings.queue_bytes, snapshot_share(machine, 0)) == (GIB, GIB)
    assert snapshot_share(machine, GIB) == GIB // 4
    assert "1/4 of the default hot_bytes" in settings.sources()["queue_bytes"].origin
    given = CacheSettings(machine=machine, hot_bytes="1GiB").sources()["queue_bytes"].origin
    assert "1/4 of hot_bytes" in given
