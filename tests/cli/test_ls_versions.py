"""`omlx-cache ls`: what it says of versions."""

from omlx_cache_daemon.commands.ls import _shown


def test_a_package_that_was_not_there_is_not_named() -> None:
    row = {"versions": {"mlx": "0.32.4", "mlx-lm": ""}, "stale": True}
    assert _shown("versions", row) == "mlx 0.32.4 (stale)"
