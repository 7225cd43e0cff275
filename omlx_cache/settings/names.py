"""The names of settings, as keywords and variables; the removed ones, with which a server starts,
and what takes the place of each; and the refusal of others. Imports nothing heavy: the command line
needs it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from omlx_cache.settings.sizes import LONGEST_WAIT
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

REMOVED: Final = {
    "eviction_policy": "every store does what `keep` did; `omlx-cache simulate` compares that with "
    "`lru`",
    "key_hash": "keys are SHA-256; a cache that was made with xxh3 begins empty",
    "memory_once": "hot_bytes=0 holds a conversation once while it is computed; its next turn is "
    "read from the disk",
    "min_free_memory_bytes": "a sixteenth of physical memory stays free, at most 2 GiB",
    "prompt_history_bytes": "prompts are remembered while a control socket or a status page can "
    "ask for them, in 1/1,024 of physical memory, at most 64 MiB; with socket=off and status=off "
    "none are",
    "queue_full": "a last commit waits `commit_wait_seconds` for the writer, while pages get "
    "written",
    "remote_codec": "dense pages are packed for the way where the extra `zstd` is installed",
    "remote_connections": "pages are read over eight connections",
    "remote_password_file": "remote_password=file:PATH names the file with the password",
    "remote_prefix": "remote=URL?prefix=NAME says what the names of values begin with",
    "remote_read_seconds": "a restore waits four times `remote_lookup_seconds` for the next bytes",
    "remote_secret_file": "remote_secret=file:PATH names the file with the secret",
    "remote_ttl_seconds": "remote=URL?ttl=SECONDS says how long values live in Valkey or Redis; "
    "buckets have lifecycle rules instead",
    "restore_bytes": "restores that were begun ahead share an eighth of physical memory",
    "restore_wait_seconds": "a session waits two seconds for the disk, and a millisecond for each "
    "token of its prompt, unless it has a `deadline=`",
    "restore_wait_seconds_per_token": "a session waits two seconds for the disk, and a millisecond "
    "for each token of its prompt, unless it has a `deadline=`",
    "share_wait_seconds": "a request waits for another that computes its prefix, ten minutes at "
    "most",
    "snapshot_bytes": "windows and snapshots share a quarter of `hot_bytes`, or of its default "
    "where that is 0",
    "status_port": "status=PORT names the port too",
    "write_delay_seconds": "write_policy=lazy writes a page after five minutes at the latest",
    "write_idle_seconds": "write_policy=lazy writes dirty pages after a minute without requests",
}
VALUES: Final = {
    ("write_policy", "back"): (
        "lazy",
        "it writes what memory evicts too, and no page that a longer one has replaced",
    ),
    ("write_policy", "second_touch"): (
        "lazy",
        "it is the nearest, and writes pages that are used once too; daily_write_bytes limits "
        "what is written",
    ),
}
"""Removed values of settings that stay: the value that takes each one's place, and why."""


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
    from difflib import get_close_matches  # only a refusal pays for it

    by_upper = {candidate.upper(): candidate for candidate in known}
    near = get_close_matches(name.upper(), by_upper, n=1)
    helps = f"; the nearest is {by_upper[near[0]]}" if near else otherwise
    return f"{name}: unknown {kind}{helps}"


def take_over(
    removed: Mapping[str, tuple[str, Any]],
    given: dict[str, tuple[str, Any]],
    arguments: dict[str, Any],
) -> list[str]:
    """Add to `arguments` and `given` what removed settings and values are taken for; return a
    warning for each. `removed` and `given` have the name that each setting came under, and what
    came."""
    found = []
    for name, (shown, raw) in removed.items():
        if taken := _taken_for(name, raw, given):
            setting, value, words = taken
            given[setting] = (given[setting][0] if setting == "remote" else shown, value)
            arguments[setting] = value
            found.append(f"{shown} is {words} now: {REMOVED[name]}")
        else:
            found.append(f"{shown} has no effect any more: {REMOVED[name]}")
    for (name, value), (instead, reason) in VALUES.items():
        shown, raw = given.get(name, (name, None))
        if str(raw).strip().lower() == value:
            arguments[name] = instead
            found.append(f"{shown}: {value} is {instead} now: {reason}")
    return found


def _taken_for(
    name: str, raw: object, given: Mapping[str, tuple[str, Any]]
) -> tuple[str, object, str] | None:
    """Return the setting and the value that a removed setting is taken for, and how a person writes
    that; None where a store does what the value says, or another setting says it."""
    value, url = str(raw).strip(), given.get("remote", ("", ""))[1]
    if name == "queue_full" and value.lower() == "wait":
        return "commit_wait_seconds", LONGEST_WAIT, f"commit_wait_seconds={LONGEST_WAIT}"
    if name in ("remote_password_file", "remote_secret_file"):
        setting = name.removesuffix("_file")
        if setting not in given and value.lower() not in ("", "off", "none"):
            return setting, f"file:{value}", f"{setting}=file:PATH"
    option = {"remote_prefix": "prefix=", "remote_ttl_seconds": "ttl="}.get(name)
    if option is None or not isinstance(url, str) or "://" not in url or option in url:
        return None
    if option == "ttl=" and url.strip().lower().startswith(("s3:", "file:")):
        return None
    mark = "&" if "?" in url else "?"
    from urllib.parse import quote  # only here: the command line starts without it

    return "remote", f"{url.strip()}{mark}{option}{quote(value)}", f"remote=URL?{option}{value}"
