"""What a store is called for people: `serve :8080, Qwen3-8B-4bit`."""

from collections.abc import Mapping

from omlx_cache_daemon.render import text


def place(reply: Mapping[str, object]) -> str:
    """Return which store this is: its name, and the port of a server."""
    service = service_of(reply)
    port = service.get("port")
    name = text(reply.get("name") or "store")
    if not isinstance(port, int):
        return name
    return f"{name} :{port}" + ("" if service.get("url") else " (loading)")


def models(reply: Mapping[str, object]) -> str:
    """Return the models that a store has pages of, or that its server is to load, by their last
    names; empty for none."""
    labels = reply.get("models")
    known = labels if isinstance(labels, list) else []
    wanted = service_of(reply).get("model")
    named = known or ([wanted] if wanted else [])
    return ", ".join(text(str(label).rstrip("/").rpartition("/")[2]) for label in named)


def title(reply: Mapping[str, object]) -> str:
    """Return a store's place and models, from its answer to `ping` or `ps`."""
    named = models(reply)
    return f"{place(reply)}, {named}" if named else place(reply)


def service_of(reply: Mapping[str, object]) -> Mapping[str, object]:
    """Return what a server says of itself, {} for a store that is none."""
    service = reply.get("service")
    return service if isinstance(service, dict) else {}
