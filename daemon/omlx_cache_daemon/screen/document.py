"""The figures of the screen as one plain document, for `top --format json`."""

from omlx_cache_daemon.replies import Map
from omlx_cache_daemon.screen.lately import LATELY_SECONDS, STEP_SECONDS, Busy
from omlx_cache_daemon.screen.view import Tier, View
from omlx_cache_daemon.screen.watched import StoreSeen


def document_of(view: View) -> Map:
    """Return what the screen shows, in plain values."""
    return {
        "at": view.at,
        **sums_of(view),
        "namespaces": [_busy(busy) for busy in view.busy],
        "namespaces_seconds": LATELY_SECONDS,
        "requests": [{"pid": pid, **record.to_dict()} for pid, record in view.requests],
        "history": {"step_seconds": STEP_SECONDS, "restored_tokens": list(view.restored)},
    }


def sums_of(view: View) -> Map:
    """Return each process's statistics, and their sums: a directory of several counts once."""
    return {
        "processes": [_process(process) for process in view.processes],
        "hot": _tier(view.hot),
        "cold": None if view.cold is None else _tier(view.cold),
        "remote": None if view.afar is None else view.afar.to_dict(),
        "pending": _tier(view.queue),
        "total": dict(view.sums),
    }


def _process(process: StoreSeen) -> Map:
    return {
        "pid": process.pid,
        "title": process.title,
        "socket": process.socket,
        "error": process.error,
        "stats": None if process.stats is None else process.stats.to_dict(),
    }


def _tier(tier: Tier) -> Map:
    return {
        "bytes": tier.nbytes,
        "limit_bytes": tier.limit_bytes,
        "pages": tier.pages,
        "state": tier.state or "ok",
    }


def _busy(busy: Busy) -> Map:
    return {
        "namespace": busy.namespace,
        "model": busy.model,
        "salt": busy.salt,
        "requests": busy.requests,
        "asked_tokens": busy.asked_tokens,
        "restored_tokens": busy.restored_tokens,
        "hit_ratio": busy.hit_ratio,
        "last_at": busy.last_at,
    }
