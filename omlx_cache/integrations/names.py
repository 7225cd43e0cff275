"""HostName: a name of another project's that an integration needs, checked before it is used."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True, slots=True)
class HostName:
    """An attribute of a module, dotted for a class's: `Scheduler._create_batch_generator`. An
    attribute of instances counts where the class's `__init__` names it. `versions` of the host have
    it, as pip takes them: other versions are not asked for it. `why` says what it is needed for."""

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
        if SpecifierSet(name.versions).contains(version, prereleases=True) and not _is_there(name)
    ]


def lacks(host: str, version: str, names: Iterable[HostName]) -> str:
    """Return the line that says which names a host lacks, and what it does without them."""
    told = ", ".join(f"`{name.module}.{name.attribute}`" for name in names)
    return f"{host} {version} has no {told}: it runs with its own cache"


def _is_there(name: HostName) -> bool:
    *owners, last = name.attribute.split(".")
    try:
        owner: Any = reduce(getattr, owners, import_module(name.module))
    except (ImportError, AttributeError):
        return False
    begun = getattr(getattr(owner, "__init__", None), "__code__", None)
    return hasattr(owner, last) or (begun is not None and last in begun.co_names)
