"""`omlx-cache doctor --remote`: the store that machines share, examined and measured."""

import sys

from omlx_cache.control.errors import ControlError
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.names import ConfigError
from omlx_cache_daemon.doctor.finding import in_order
from omlx_cache_daemon.doctor.remote.examining import Examined, examine_remote
from omlx_cache_daemon.doctor.remote.report import report
from omlx_cache_daemon.errors import FAILURE, OK, CommandError, NobodyThere
from omlx_cache_daemon.render import print_json, text
from omlx_cache_daemon.stores import running
from omlx_cache_storage.remote.address import RemoteAddress

_ASK_SECONDS = 3.0
_KIND = "doctor"
"""Stands for the architecture, which needs MLX to be told: nothing is asked for under it."""


def run_remote(url: str, seconds: float, *, as_json: bool) -> int:
    """Examine the store at a URL, or the configured one for "", and print what there is to say.
    FAILURE when there is an error; raises CommandError where nothing can be examined."""
    done = _examined(url, seconds)
    found = in_order(done.findings)
    errors = [one for one in found if one.severity == "error"]
    computes = _rates()
    if as_json:
        counts = {"errors": len(errors), "warnings": sum(o.severity == "warning" for o in found)}
        print_json(
            {
                **done.to_dict(),
                "tokens_per_second": computes,
                "findings": [one.to_dict() for one in found],
                **counts,
            }
        )
    else:
        sys.stdout.write(report(done, computes))
        for one in found:
            said = [f"{one.severity}: {text(one.found)}", f"  {text(one.meaning)}"]
            sys.stdout.write("\n".join(["", *said, f"  remedy: {text(one.remedy)}", ""]))
        if not any(one.severity != "note" for one in found):
            sys.stdout.write("\nno trouble found\n")
    return FAILURE if errors else OK


def _examined(url: str, seconds: float) -> Examined:
    try:
        settings = CacheSettings(remote=url) if url else CacheSettings()
        options = settings.remote_options(_KIND)
        address = settings.remote
        if options is None or not isinstance(address, RemoteAddress):
            raise CommandError(
                "remote is off: name a store (omlx-cache doctor --remote redis://HOST:6379), or "
                "set OMLX_CACHE_REMOTE"
            )
        return examine_remote(
            address, options, writes=settings.remote_writes != "off", seconds=seconds
        )
    except (ConfigError, ValueError, ImportError) as error:
        raise CommandError(str(error)) from None


def _rates() -> dict[str, float]:
    """Return how quickly running stores compute, by model."""
    found: dict[str, float] = {}
    for store in running():
        try:
            stats = store.client(_ASK_SECONDS).call("stats")
        except (NobodyThere, ControlError):
            continue
        requests = stats.get("requests") if isinstance(stats, dict) else None
        rates = requests.get("prefill_tokens_per_second") if isinstance(requests, dict) else None
        for model, rate in rates.items() if isinstance(rates, dict) else ():
            if isinstance(rate, int | float) and rate > 0:
                found[str(model)] = max(float(rate), found.get(str(model), 0.0))
    return found
