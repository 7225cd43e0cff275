"""What a store is called for people."""

from omlx_cache_daemon.titles import title


def test_a_server_whose_model_is_being_read_is_loading() -> None:
    reply = {"name": "serve", "models": [], "service": {"port": 8080, "model": "org/tiny"}}
    assert title(reply) == "serve :8080 (loading), tiny"
    reply["service"] = {"port": 8080, "model": "org/tiny", "url": "http://127.0.0.1:8080"}
    assert title(reply) == "serve :8080, tiny"
