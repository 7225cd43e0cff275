"""The cold directory itself: whose it is, who may change it, and what lies in it beside pages."""

import itertools
import os
import stat
from pathlib import Path

from omlx_cache_daemon.changing import remove_useless
from omlx_cache_daemon.cold import root_of
from omlx_cache_daemon.doctor.context import Context
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_daemon.render import quantity
from omlx_cache_storage.cold.catalog import namespace_directories
from omlx_cache_storage.cold.files import TAG_FILE
from omlx_cache_storage.cold.root import DirectoryGone
from omlx_cache_storage.cold.small_files import BUDGET, PINS
from omlx_cache_storage.format.names import BUDGET_FILE, LEDGER_FILE, PINS_FILE
from omlx_cache_storage.private import is_private, trouble

_PRIVATE = 0o700


def place(context: Context) -> list[Finding]:
    """The directory is there, is the one that it was, and can be read; or a store can make it."""
    directory = context.directory
    if not context.exists and context.settings is not None and context.settings.hot_cache_only:
        return []
    try:
        root_of(directory).check()
    except DirectoryGone as gone:
        return [
            Finding(
                "error",
                str(gone.strerror),
                "nothing is kept on the disk",
                "mount its disk, or set OMLX_CACHE_COLD_DIR to another place",
            )
        ]
    except OSError:
        # That is told of below.
        pass
    if context.exists:
        return []
    if directory.exists() or directory.is_symlink():
        return [
            Finding(
                "error",
                f"{directory} is no directory that can be read",
                "nothing is kept on the disk",
                f"ls -ld {directory}",
            )
        ]
    above = next((path for path in directory.parents if path.exists()), directory.parent)
    if os.access(above, os.W_OK):
        return []
    return [
        Finding(
            "error",
            f"{directory} is missing, and {above} does not let it be made",
            "nothing is kept on the disk",
            "set OMLX_CACHE_COLD_DIR to another place",
        )
    ]


def permissions(context: Context) -> list[Finding]:
    """Nobody else can read or change the directory."""
    if not context.exists:
        return []
    directory, info = context.directory, context.directory.stat()
    wrong = trouble(directory, info, allowed=_PRIVATE)
    if not wrong:
        return []
    used = is_private(info)
    meaning = "others may read what prompts were about" if used else "no store uses it"
    own = info.st_uid == os.geteuid()
    remedy = f"chmod 700 {directory}" if own else wrong
    fix = (lambda: _close(directory)) if own and _is_cold(directory, context) else None
    return [Finding("warning" if used else "error", wrong, meaning, remedy, fix)]


def passed_over(context: Context) -> list[Finding]:
    """Stores pass nothing over because others could have changed it."""
    own: list[str] = []
    others: list[str] = []
    for path in context.census.ignored if context.exists else ():
        try:
            info = os.lstat(path)
        except OSError:
            continue
        is_plain = stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)
        (own if is_plain and info.st_uid == os.geteuid() else others).append(path)
    found = []
    if own:
        # While nobody else could get at them, nobody else has changed them.
        closed = not trouble(context.directory, context.directory.stat(), allowed=_PRIVATE)
        fix = (lambda: _close_all(own)) if closed else None
        remedy = f"chmod -R go-rwx {context.directory}" if closed else f"ls -lR {own[0]}"
        what = "pages or their directories may be changed by other users"
        found.append(
            Finding("warning", f"{len(own):,} {what}", "stores pass them over", remedy, fix)
        )
    if others:
        what = "are another user's, or no plain files"
        found.append(
            Finding(
                "warning",
                f"{len(others):,} pages or directories {what}: {others[0]}",
                "stores pass them over, and count no bytes of theirs",
                f"ls -l {others[0]}",
            )
        )
    return found


def leftovers(context: Context) -> list[Finding]:
    """Dead writers left nothing, and no directory is there for nothing."""
    if not context.exists:
        return []
    found = []
    left = context.census.left
    if left:
        found.append(
            Finding(
                "warning",
                f"{len(left):,} files are half written, and their writers are gone",
                "they take room; the next store that opens the directory deletes them",
                "omlx-cache doctor --fix",
                lambda: _delete(context, left, []),
            )
        )
    # A store that has just made one is about to put a page there.
    empty = [] if context.users else context.census.empty
    if empty:
        found.append(
            Finding(
                "note",
                f"{len(empty):,} directories are empty",
                "they take a little room",
                "omlx-cache doctor --fix",
                lambda: _delete(context, [], empty),
            )
        )
    return found


def foreign(context: Context) -> list[Finding]:
    """Nothing lies in the directory that is no cache's."""
    known = context.census.foreign if context.exists else []
    caches = [path for path in known if _is_cold(Path(path), context)]
    found = [
        Finding(
            "warning",
            f"{path} is another cache, inside of this one",
            "no store uses its pages here, and no budget counts their bytes",
            f"move it out of {context.directory}: mv {path} {_free_name(context.directory)}",
        )
        for path in caches
    ]
    others = [path for path in known if path not in caches]
    if others:
        found.append(
            Finding(
                "note",
                f"{len(others):,} files are no cache's: {others[0]}",
                "nobody uses or deletes them",
                f"ls -lR {others[0]}",
            )
        )
    return found


def budget_file(context: Context) -> list[Finding]:
    """The file with the budget can be read."""
    path = context.directory / BUDGET_FILE
    if not context.exists or not os.path.lexists(path):
        return []
    try:
        if context.budget is not None or BUDGET.is_newer(context.directory, context.fs):
            return []
    except OSError:
        pass
    return [
        Finding(
            "error",
            f"{path} cannot be understood",
            "a budget that a person set does not count",
            "omlx-cache doctor --fix sets it aside; then omlx-cache quota SIZE",
            lambda: _aside(path),
        )
    ]


def pins_file(context: Context) -> list[Finding]:
    """The file with the pins can be read."""
    path = context.directory / PINS_FILE
    try:
        if not context.exists or PINS.is_readable(context.directory, context.fs):
            return []
    except OSError:
        pass
    return [
        Finding(
            "warning",
            f"{path} cannot be understood, or says more than this version understands",
            "what a person pinned may be evicted",
            "use the version of omlx-cache that wrote it; or omlx-cache doctor --fix sets it "
            "aside, then omlx-cache pin",
            None if context.exists and _is_newer_pins(context) else lambda: _aside(path),
        )
    ]


def _is_newer_pins(context: Context) -> bool:
    try:
        return PINS.is_newer(context.directory, context.fs)
    except OSError:
        return False


def _is_cold(directory: Path, context: Context) -> bool:
    """True for a directory that is a cache's, and not somebody's home."""
    names = (TAG_FILE, LEDGER_FILE, BUDGET_FILE)
    if any((directory / name).is_file() for name in names):
        return True
    return any(True for _ in namespace_directories(directory, context.fs))


def _free_name(directory: Path) -> Path:
    """Return a name beside a directory that nothing has."""
    names = (directory.with_name(f"{directory.name}-{number}") for number in itertools.count(2))
    return next(name for name in names if not os.path.lexists(name))


def _close(path: os.PathLike[str]) -> str:
    os.chmod(path, _PRIVATE)
    return f"chmod 700 {path}"


def _close_all(paths: list[str]) -> str:
    for path in paths:
        os.chmod(path, _PRIVATE if os.path.isdir(path) else 0o600)
    return f"{len(paths):,} closed to others; omlx-cache verify reads them"


def _delete(context: Context, left: list[str], empty: list[str]) -> str:
    remove_useless(context.directory, left, empty, context.fs)
    return f"{len(left) + len(empty):,} deleted"


def _aside(path: Path) -> str:
    aside = path.with_name(f"{path.name}.unreadable")
    os.rename(path, aside)
    size = quantity("bytes", aside.lstat().st_size)
    return f"set aside as {aside.name} ({size})"
