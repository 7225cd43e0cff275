"""The names of settings, as keywords and variables, and the refusal of others.

Imports nothing heavy: the command line needs it.
"""

from collections.abc import Iterable, Mapping, Sequence

from omlx_cache.settings.removed import REMOVED
from omlx_cache_storage.errors import CacheError

PREFIX = "OMLX_CACHE_"
COLD_DIR_VARIABLE = PREFIX + "COLD_DIR"
SOCKET_VARIABLE = PREFIX + "SOCKET"
RUNTIME_DIR_VARIABLE = PREFIX + "RUNTIME_DIR"
SETTING_NAMES = (
    "block_size",
    "hot_bytes",
    "hot_cache_only",
    "cold_dir",
    "cold_bytes",
    "min_free_bytes",
    "write_policy",
    "daily_write_bytes",
    "queue_bytes",
    "commit_wait_seconds",
    "worth_reading",
    "prepare",
    "durability",
    "codec",
    "cold_codec",
    "min_quantize_tokens",
    "snapshot_stride",
    "trace",
    "socket",
    "status",
    "status_token",
    "log_level",
    "require",
    "remote",
    "remote_password",
    "remote_secret",
    "remote_encrypt",
    "remote_writes",
    "remote_lookup_seconds",
    "remote_architecture",
)
"""In the order of the reference: the fields of `CacheSettings`."""
OTHER_VARIABLES = {
    RUNTIME_DIR_VARIABLE: "The directory of the control sockets: made with mode 0700, and refused "
    "when it is another user's. By default `$XDG_RUNTIME_DIR/omlx-cache`, on macOS "
    "`$TMPDIR/omlx-cache`, else `/tmp/omlx-cache-<uid>`, where a store that listens elsewhere "
    "leaves a link, so that commands of another login session find it. When this variable is set, "
    "no other directory is looked into, and no link is left.",
}


class ConfigError(CacheError, ValueError):
    """A setting is refused. The text names it, says what came and what is allowed."""


def variable(name: str) -> str:
    return PREFIX + name.upper()


def refuse_unknown(
    settings: Iterable[str], arguments: Iterable[str], environ: Mapping[str, str]
) -> None:
    """Raise ConfigError for every keyword and every `OMLX_CACHE_*` variable that nothing reads; not
    for those of removed settings, which warn. Variables are case-sensitive."""
    names = list(settings)
    variables = [*map(variable, names), *OTHER_VARIABLES]
    removed = [*REMOVED, *map(variable, REMOVED)]
    unknown = [
        refusal("setting", name, names) for name in arguments if name not in (*names, *REMOVED)
    ]
    unknown += [
        refusal("variable", name, variables)
        for name in sorted(environ)
        if name.upper().startswith(PREFIX) and name not in (*variables, *removed)
    ]
    if unknown:
        raise ConfigError("\n".join(unknown))


def refusal(kind: str, name: str, known: Sequence[str], otherwise: str = "") -> str:
    """Return what a person is told of a name that is not known: that, and the one like it, or
    `otherwise`."""
    from difflib import get_close_matches  # only a refusal pays for it

    by_upper = {candidate.upper(): candidate for candidate in known}
    near = get_close_matches(name.upper(), by_upper, n=1)
    helps = f"; the nearest is {by_upper[near[0]]}" if near else otherwise
    return f"{name}: unknown {kind}{helps}"
