"""The examination of a store as text for people."""

from collections.abc import Mapping

from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.doctor.remote.examining import Examined
from omlx_cache_daemon.doctor.remote.measuring import Measured
from omlx_cache_daemon.doctor.remote.worth import (
    ASSUMED,
    LINKS,
    MODELS,
    PREFIX_TOKENS,
    Worth,
    most_token_bytes,
    worth,
)
from omlx_cache_daemon.render import duration, table, text

_PHASES = 3
_ON_PAPER = tuple(model for model in MODELS if model.name in ("Llama 3.1 8B", "Llama 3.3 70B"))


def report(done: Examined, computes: Mapping[str, float]) -> str:
    """Return what was measured, and what it means; `computes` are tokens a second by model, as far
    as running stores know theirs."""
    measured, parts = done.measured, [_head(done)]
    if measured.median_trip_seconds is not None:
        parts.append(_measured(measured))
    rate, lookup = measured.best_rate, measured.lookup_seconds
    if rate is not None and lookup is not None:
        parts.append(_worth("what this link is good for", done.worth))
        parts += [_own(model, speed, rate, lookup) for model, speed in sorted(computes.items())]
    parts.append(_on_paper())
    return "\n".join(parts)


def _head(done: Examined) -> str:
    server = f" ({text(done.server)})" if done.server else ""
    days = done.certificate_days
    good = "" if days is None else f", its certificate is good for {duration(days * 86400)}"
    return f"{text(done.where)}{server}: {'answers' if done.reached else 'no answer'}{good}\n"


def _measured(measured: Measured) -> str:
    median, shortest = measured.median_trip_seconds, measured.shortest_trip_seconds
    lines = [("round trip", f"{_ms(median)} (median; {_ms(shortest)} the shortest)")]
    if measured.phase_seconds is not None:
        phase = f"{_ms(measured.phase_seconds)} for each of at most {_PHASES} phases"
        pages = f"{measured.phase_pages} pages asked for in each"
        lines.append(("look-up", f"{_ms(measured.lookup_seconds)} at most: {phase}, {pages}"))
    if measured.write_rate is not None:
        lines.append(("writing", f"{_rate(measured.write_rate)}, one connection"))
    if measured.read_rate is not None:
        lines.append(("reading", f"{_rate(measured.read_rate)}, one connection"))
    if measured.parallel_rate is not None:
        lines.append(("", f"{_rate(measured.parallel_rate)}, {measured.connections} connections"))
    if measured.value_bytes:
        lines.append(("", f"of values of {format_size(measured.value_bytes)}, deleted again"))
    return "".join(f"  {name:<10}  {said}\n" for name, said in lines)


def _worth(title: str, rows: list[Worth]) -> str:
    shown = [
        (
            one.model,
            format_size(one.token_bytes),
            f"{1e6 * one.token_seconds:,.1f} us",
            f"{one.tokens_per_second:,.0f} tokens/s",
        )
        for one in rows
    ]
    named = table(("MODEL", "A TOKEN HAS", "READ IN", "WORTH IT BELOW"), shown)
    return f"{title} (a prefix of {PREFIX_TOKENS:,} tokens, look-up included)\n{_indented(named)}"


def _own(model: str, speed: float, rate: float, lookup: float) -> str:
    most = most_token_bytes(rate, lookup, speed)
    return (
        f"  {text(model)} computes {speed:,.0f} tokens/s here: worth it where a token has under "
        f"{format_size(int(most))} (omlx-cache size says)\n"
    )


def _on_paper() -> str:
    rows = []
    for link in LINKS:
        lookup = _PHASES * link.trip_seconds
        limits = [worth(model, link.rate, lookup).tokens_per_second for model in _ON_PAPER]
        speeds = [f"{limit:,.0f} tokens/s" for limit in limits]
        rows.append((link.name, _rate(link.rate), _ms(link.trip_seconds), *speeds))
    names = [f"{model.name.upper()} BELOW" for model in _ON_PAPER]
    shown = table(("LINK", "GIVES", "ROUND TRIP", *names), rows)
    return f"{ASSUMED}\n{_indented(shown)}"


def _indented(block: str) -> str:
    return "".join(f"  {line}\n" for line in block.splitlines())


def _rate(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s" if rate >= 1e8 else f"{rate / 1e6:.2f} MB/s"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.3g} ms"
