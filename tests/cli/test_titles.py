"""What stores and versions are called for people."""

from omlx_cache_daemon.commands.ls import _shown
from omlx_cache_daemon.titles import title


def test_a_server_whose_model_is_being_read_is_loading() -> None:
    reply = {"name": "serve", "models": [], "service": {"port": 8080, "model": "org/tiny"}}
    assert title(reply) == "serve :8080 (loading), tiny"
    reply["service"] = {"port": 8080, "model": "org/tiny", "url": "http://127.0.0.1:8080"}
    assert title(reply) == "serve :8080, tiny"


def test_a_package_that_was_not_there_is_not_named() -> None:
    row = {"versions": {"mlx": "0.32.4", "mlx-lm": ""}, "stale": True}
    assert _shown("versions", row) == "mlx 0.32.4 (stale)"
