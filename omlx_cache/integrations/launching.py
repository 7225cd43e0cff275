"""`omlx-cache run`: another server's own command and flags, with this cache where it had its own.

A server's `launch` module is imported only when its name was typed. Nothing here imports MLX.
"""

import errno
import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol, cast

from omlx_cache.integrations import SERVERS
from omlx_cache.integrations.host_server import HostServer, UnusableHost
from omlx_cache.package import OWN_LOGGERS, VERSION, set_level
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.derived import ANSWER_SECONDS, FREE_DISK_SHARE
from omlx_cache.settings.sizes import format_size
from omlx_cache.upkeep.directory import expected
from omlx_cache_storage.cold.disk import DISK
from omlx_cache_storage.cold.root import Root
from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.io_threads import within

if TYPE_CHECKING:
    from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 60.0
_FORMAT = "%(asctime)s - %(levelname)s - %(message)s"

OpenStore = Callable[..., "BlockStore"]
"""Opens the one store of the process that serves, when it is needed; it can be pickled."""


class CannotRun(CacheError):
    """A server is not there, or lacks a package, or nothing can be kept."""


class Launch(Protocol):
    """A server's `launch` module."""

    @property
    def HOST(self) -> HostServer: ...

    def place(self, open_store: OpenStore, **options: Any) -> None:
        """Put the cache where the server's own command will use it."""

    def main(self, arguments: Sequence[str]) -> None:
        """Run the server's own entry point until it ends; raises SystemExit as it does."""


def launch(
    name: str, arguments: Sequence[str], settings: CacheSettings | None = None, **options: object
) -> int:
    """Run a server until it ends, write the pending pages, and return the exit code. `settings` are
    those of the variables, unless others are given; `options` are for the server's `place`.

    A server that lacks a name runs with its own cache. Raises CannotRun, ConfigError and, with the
    setting `require`, UnusableHost before anything of the server's runs. SIGTERM, where the server
    leaves it to the system, ends it as Ctrl-C does.
    """
    is_told = settings is None and not {"-h", "--help"} & set(arguments)
    opened: OpenStore = partial(open_store, name)
    if settings is not None:
        opened = partial(_open, settings, "serve")
    settings = settings or CacheSettings()
    module = find(name)
    host = module.HOST
    if not host.version:
        raise CannotRun(absent(name, host))
    check_cold_dir(settings)
    show_logs(settings)
    said_by_the_store = settings.warnings() + settings.unusable_directory()
    for note in settings.notes():
        if note not in said_by_the_store:
            _log.warning(note)
    complete = host.is_complete(require=settings.require)
    if complete and is_told:
        _log.info("%s", in_place(settings, f"{name} ({host.package} {host.version})"))
    if complete and not host.is_tested:
        _log.warning(
            "%s %s was not tested, versions %s were: it is tried with each model that is loaded",
            *(host.package, host.version, host.tested),
        )
    with _terminated_as_interrupted() as terminated:
        try:
            if complete:
                module.place(opened, **options)
            code = _code_of(module, arguments)
        except ImportError as error:
            raise CannotRun(f"{name} cannot be run: {error}") from error
    clean = close_store()
    return int(not clean) if terminated else code or int(not clean)


def find(name: str) -> Launch:
    """Return the launch module of one of `SERVERS`; raises CannotRun when it cannot be imported."""
    try:
        module = import_module(f"omlx_cache.integrations.{SERVERS[name]}.launch")
    except ImportError as error:
        raise CannotRun(f"{name} cannot be run: {error}") from error
    return cast(Launch, module)


def absent(name: str, host: HostServer) -> str:
    """Return the line that names the command which brings a missing server and this package into
    one environment: where the server is, if it is on the PATH."""
    command, wanted, then = shutil.which(name), f"{host.package}{host.tested}", ""
    python = Path(command or "/none").resolve().with_name("python3")
    if python.exists():
        ours = quote(str(python.with_name("omlx-cache")))
        wanted, then = "omlx-cache", f" && {ours} run {name} ..."
        with suppress(PackageNotFoundError):
            origin = distribution(wanted).read_text("direct_url.json")
            wanted = json.loads(origin)["url"] if origin else wanted
    else:
        python = Path(sys.executable)
    # Environments of uv have no pip.
    place, pip = python.parent.parent, f"{quote(str(python))} -m pip install"
    if (place / "pyvenv.cfg").exists() and not any(place.glob("lib/*/site-packages/pip")):
        pip = f"uv pip install --python {quote(str(python))}"
    return (
        f"omlx-cache runs {name} with {sys.executable}, whose environment lacks it. "
        f"Install both in one: {pip} {quote(wanted)}{then}"
    )


def check_cold_dir(settings: CacheSettings) -> None:
    """Raise CannotRun for a directory that no store could open; writes nothing."""
    trouble = settings.cold_dir_trouble()
    if trouble and not waits_for_disk(settings, trouble):
        raise CannotRun(
            f"nothing can be kept in {settings.cold_dir}: {trouble}; name another place with "
            "OMLX_CACHE_COLD_DIR, or keep all in memory with OMLX_CACHE_HOT_CACHE_ONLY=1"
        )


def waits_for_disk(settings: CacheSettings, trouble: str) -> bool:
    """True where the cold directory's trouble is a disk that is not mounted, or mounted read-only:
    a store does without until that changes."""

    def looked() -> bool:
        memory, parents = settings.machine.state_dir, settings.makes_parents
        root = Root(settings.cold_dir, DISK, memory=memory, parents=parents)
        return trouble.endswith(os.strerror(errno.EROFS)) or bool(root.unmounted())

    return within(looked, "omlx-cache-settings", ANSWER_SECONDS, True)


def in_place(settings: CacheSettings, server: str) -> str:
    """Return the line that says where a server's prompts are kept, and how much of them."""
    memory = f"{format_size(settings.hot_bytes)} of memory"
    if settings.hot_cache_only:
        kept = f"{memory}, nothing on the disk"
    else:
        allowed = expected(settings)
        disk = f"1/{FREE_DISK_SHARE} of the free disk"
        if allowed.set_by or allowed.given_bytes is not None:
            disk = f"{format_size(allowed.own_limit_bytes or allowed.limit_bytes)} of disk"
        kept = f"{memory}, {disk} in {settings.cold_dir}"
    return f"omlx-cache {VERSION} keeps the prompts of {server}: {kept}"


def show_logs(settings: CacheSettings) -> None:
    """Show what this project logs on standard error, from `log_level` on, and nothing else: the
    server's own log is the server's to set up. Idempotent."""
    set_level(settings.log_level if settings.is_given("log_level") else "info")
    for name in OWN_LOGGERS:
        logger = logging.getLogger(name)
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(_FORMAT))
            logger.addHandler(handler)
            # A server that shows everything would show it twice.
            logger.propagate = False


def put(install: Callable[[Any, "BlockStore"], object], target: Any, open_store: OpenStore) -> None:
    """Put the cache into a server's object; after a failure, which is logged, it has its own.
    Raises UnusableHost only."""
    try:
        install(target, open_store())
    except UnusableHost:
        raise
    except Exception:
        _log.exception("%s keeps its own cache", type(target).__name__)


_lock = threading.Lock()
_store: "BlockStore | None" = None
"""This process's store, and the lock that guards it."""


def open_store(name: str = "run", *, waits: bool = False) -> "BlockStore":
    """Return this process's one store, opened now if need be under a name that `omlx-cache ps`
    shows. `waits`: as for `BlockStore`. Any thread may call it, and processes that a server has
    spawned."""
    global _store
    with _lock:
        if _store is None or _store.closed:
            settings = CacheSettings()
            show_logs(settings)
            _store = _open(settings, name, waits=waits)
            if settings.status != "off":
                serve_status(_store, settings)
        return _store


def _open(settings: CacheSettings, name: str, *, waits: bool = False) -> "BlockStore":
    from omlx_cache.store import BlockStore

    return BlockStore(settings, name=name, waits=waits)


def serve_status(store: "BlockStore", settings: CacheSettings) -> None:
    """Answer the status paths at the port that `status` names, or at a free one; logs a port that
    cannot be had."""
    port = settings.status if isinstance(settings.status, int) else 0
    try:
        server = store.serve_status(port, settings.token)
    except (OSError, CacheError) as error:
        _log.warning("no status page: %s; OMLX_CACHE_STATUS=PORT names another port", error)
    else:
        _log.info("status page: %s", server.url)


def close_store(timeout: float = CLOSE_SECONDS) -> bool:
    """Write the pending pages and close this process's store; False when not all of them were
    written in time. Does nothing where none was opened."""
    with _lock:
        store = _store
    return store is None or store.close(timeout)


def _code_of(module: Launch, arguments: Sequence[str]) -> int:
    try:
        module.main(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0)
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


@contextmanager
def _terminated_as_interrupted() -> Iterator[list[int]]:
    """Have SIGTERM raise KeyboardInterrupt while the block runs, where it would end the process at
    once; yields a list that is no longer empty once it came. Servers that handle it set their own
    handler, and some raise it again when they have ended."""
    came: list[int] = []

    def handle(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield came
        return
    signal.signal(signal.SIGTERM, handle)
    try:
        yield came
    finally:
        # A server that has ended may ignore what still comes.
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
