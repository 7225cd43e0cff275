"""HostServer: another project's server, and the names that are needed of it, checked before
anything of it runs. Imports no MLX."""

import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from omlx_cache import mlx_lm_versions
from omlx_cache.identity.namespace import version_of
from omlx_cache_storage.errors import CacheError

_log = logging.getLogger(__name__)

RUNS_WITH_ITS_OWN = ": it runs with its own cache"
SHOWN = 3
"""Names that one line says: where a module went, all of its names did."""


@dataclass(frozen=True, slots=True)
class HostName:
    """An attribute of a module, dotted for a class's: `Scheduler._create_batch_generator`. An
    attribute of instances counts where the class's `__init__` names it. `versions` of the host have
    it, in pip's form: other versions are not asked for it. `why` says why the cache needs it."""

    module: str
    attribute: str
    why: str
    versions: str = ""


def missing(names: Iterable[HostName], version: str) -> list[HostName]:
    """Return the names that this version of the host should have and lacks; imports its modules.

    A module that is not there, or that cannot be imported, lacks all of its names.
    """
    return [
        name
        for name in names
        if (not name.versions or _covers(name.versions, version)) and not _is_there(name)
    ]


def lacks(host: str, version: str, names: Iterable[HostName]) -> str:
    """Return the line that says which names a host lacks, and how it runs without them; "" for
    none."""
    told = [f"`{name.module}.{name.attribute}`" for name in names]
    if len(told) > SHOWN:
        told[SHOWN:] = [f"nor {len(told) - SHOWN} more"]
    return f"{host} {version} has no {', '.join(told)}{RUNS_WITH_ITS_OWN}" if told else ""


class UnusableHost(CacheError, RuntimeError):
    """A host cannot have this cache, and the setting `require` says that it must."""


@dataclass(frozen=True, slots=True)
class HostServer:
    """A server that this cache is put into: its command, its distribution, the tested versions in
    pip's form, and the names that it must have."""

    name: str
    package: str
    tested: str
    needed: tuple[HostName, ...] = ()

    @property
    def version(self) -> str:
        """The installed version, empty for a source tree and for none."""
        return version_of(self.package)

    @property
    def is_tested(self) -> bool:
        """True when the tests ran with the installed version, and with that of mlx-lm."""
        beneath = mlx_lm_versions.installed()
        return _covers(self.tested, self.version) and (
            not beneath or _covers(mlx_lm_versions.TESTED, beneath)
        )

    def lacking(self) -> str:
        """Return the line that says which names the installed version lacks, "" for none; imports
        the host's modules."""
        return lacks(self.package, self.version, missing(self.needed, self.version))

    def is_complete(self, *, require: bool) -> bool:
        """Return whether the installed version has every name. Logs which it lacks, or with
        `require` raises UnusableHost."""
        return _settled(self.lacking(), require)

    def takes(
        self,
        target: object,
        names: Iterable[HostName],
        model: Callable[[], Any],
        *,
        require: bool,
        make_cache: Callable[[], list[Any]] | None = None,
    ) -> bool:
        """Return whether the cache may go into an object of the host's: it has every name, and an
        untested version restores what its model computed (`probe`). `model` returns that, and is
        called where the names are there. Logs why not, or with `require` raises UnusableHost. Call
        it on the thread that runs the model."""
        gone = [name for name in names if not has(target, name.attribute)]
        line = lacks(self.package, self.version, gone)
        if not line and not self.is_tested:
            from omlx_cache.integrations.probe import is_right

            if not is_right(self.package, model(), make_cache):
                line = (
                    f"{self.package} {self.version} was not tested, and restores something else "
                    f"than it computed{RUNS_WITH_ITS_OWN}"
                )
        return _settled(line, require)


def has(target: object, attribute: str) -> bool:
    """True when an object has the last part of a dotted name."""
    return hasattr(target, attribute.rpartition(".")[2])


def names_of(module: str, kind: str, attributes: str, why: str) -> tuple[HostName, ...]:
    """Return the names of several attributes of a class, which stand with spaces between them."""
    return tuple(HostName(module, f"{kind}.{name}", why) for name in attributes.split())


def _settled(line: str, require: bool) -> bool:
    if line and require:
        raise UnusableHost(line.removesuffix(RUNS_WITH_ITS_OWN))
    if line:
        _log.warning(line)
    return not line


def _covers(versions: str, version: str) -> bool:
    try:
        return SpecifierSet(versions).contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _is_there(name: HostName) -> bool:
    *owners, last = name.attribute.split(".")
    try:
        owner: Any = reduce(getattr, owners, import_module(name.module))
    except (ImportError, AttributeError):
        return False
    begun = getattr(inspect.unwrap(getattr(owner, "__init__", owner)), "__code__", None)
    return hasattr(owner, last) or (begun is not None and last in begun.co_names)
