"""What is installed, what was set, and what the machine has left."""

from omlx_cache.identity.parts import software
from omlx_cache.mlx_lm_versions import UntestedVersion, check
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.derived import memory_to_leave
from omlx_cache.settings.names import SETTING_NAMES, ConfigError, refuse_unknown
from omlx_cache.upkeep.memory import Level, level_of, reader
from omlx_cache_daemon.doctor.context import Context
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_daemon.render import quantity
from omlx_cache_daemon.staleness import current_versions
from omlx_cache_storage.cold.catalog import read_namespace
from omlx_cache_storage.documents import MLX, MLX_LM, as_versions
from omlx_cache_storage.documents import versions as versions_of

_MEMINFO = "/proc/meminfo"


def packages(context: Context) -> list[Finding]:
    """mlx-lm is a version that this was tested with, where MLX is installed at all."""
    here = software()
    if not here[MLX] or not here[MLX_LM]:
        return []
    try:
        check("omlx-cache")
    except UntestedVersion as error:
        text, _, remedy = str(error).partition(": ")
        return [Finding("warning", text, "serve and warm refuse to start", remedy)]
    return []


def stale(context: Context) -> list[Finding]:
    """The pages are of versions that somebody uses."""
    if not context.exists:
        return []
    theirs = (as_versions(process.ps.get("versions")) for process in context.users)
    current = current_versions(theirs)
    old = nbytes = 0
    for namespace, taken in context.census.by_namespace.items() if current else ():
        needed = versions_of(read_namespace(context.directory, namespace))
        if needed and needed not in current:
            old, nbytes = old + 1, nbytes + taken
    if not old:
        return []
    return [
        Finding(
            "note",
            f"{old:,} namespaces ({quantity('bytes', nbytes)}) are of other versions of mlx, "
            "mlx-lm or the page format",
            "they are not restored, and leave as room is needed",
            f"omlx-cache prune --stale --dry-run {context.named}",
        )
    ]


def variables(context: Context) -> list[Finding]:
    """Every variable is one that is read."""
    try:
        refuse_unknown(SETTING_NAMES, (), context.environ)
    except ConfigError as error:
        return [
            Finding("error", line, "stores and other commands refuse to start", _unset(line))
            for line in str(error).splitlines()
        ]
    return []


def settings(context: Context) -> list[Finding]:
    """A store can be started with what this shell says, and keeps something."""
    try:
        refuse_unknown(SETTING_NAMES, (), context.environ)
    except ConfigError:
        return []
    try:
        known = CacheSettings()
    except ConfigError as error:
        return [Finding("error", str(error), "no store starts in this shell", "omlx-cache config")]
    found: list[Finding] = []
    look = "omlx-cache config --here"
    if known.hot_bytes == 0 and (known.cold_bytes == 0 or known.hot_cache_only):
        text = "hot_bytes and cold_bytes are 0" if known.cold_bytes == 0 else "hot_bytes is 0"
        found.append(Finding("error", text, "nothing is kept at all", look))
    elif known.cold_bytes == 0 and not known.hot_cache_only:
        found.append(Finding("warning", "cold_bytes is 0", "nothing outlives the process", look))
    notes = known.notes()
    return [*found, *(Finding("note", note, "it is not as it was set", look) for note in notes)]


def memory(context: Context) -> list[Finding]:
    """The machine has memory left, and swap if it has any."""
    wanted = 0 if context.settings is None else memory_to_leave(context.settings.machine)
    figures = reader()()
    found = []
    if level_of(figures, wanted) > Level.NORMAL:
        free = ""
        if figures.free_bytes is not None:
            free = f" ({quantity('bytes', figures.free_bytes)} free)"
        found.append(
            Finding(
                "warning",
                f"the machine is short of memory{free}",
                "stores give up pages that they have in memory",
                "stop something, or lower OMLX_CACHE_HOT_BYTES",
            )
        )
    total, free_swap = _swap()
    if total and free_swap < total // 10:
        found.append(
            Finding(
                "warning",
                f"of {quantity('bytes', total)} swap {quantity('bytes', free_swap)} are free",
                "what is swapped out is slower than computing it again",
                "lower OMLX_CACHE_HOT_BYTES, or stop something",
            )
        )
    return found


def _swap() -> tuple[int, int]:
    """Return the bytes of swap and how many are free, zeros where that is not told."""
    values = {}
    try:
        with open(_MEMINFO, encoding="ascii") as lines:
            for line in lines:
                name, _, rest = line.partition(":")
                if name in ("SwapTotal", "SwapFree"):
                    values[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 0, 0
    return values.get("SwapTotal", 0), values.get("SwapFree", 0)


def _unset(line: str) -> str:
    return f"unset {line.partition(':')[0]}"
