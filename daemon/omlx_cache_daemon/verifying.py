"""What `omlx-cache verify` reads, and what it found out so far."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from omlx_cache_daemon.checking import Checked, Pace, Verdict, check_pages, remove_damaged
from omlx_cache_daemon.cold import reading
from omlx_cache_daemon.errors import CommandError
from omlx_cache_storage.cold.catalog import namespace_directories, walk, walk_namespace
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.keys import BlockKey

_REMEMBERED = 1000
"""Files of one verdict that are named; all are counted."""


@dataclass(frozen=True, slots=True)
class Task:
    """Which files to read, and how."""

    directory: Path
    namespace: BlockKey | None
    after: str | None
    bytes_per_second: int
    delete: bool

    @classmethod
    def of(
        cls,
        directory: Path,
        prefix: str | None,
        after: str | None,
        bytes_per_second: int,
        delete: bool,
    ) -> "Task":
        """Return the task; raises CommandError unless one namespace begins with `prefix`."""
        with reading(directory):
            namespace = None if prefix is None else _named(directory, prefix)
        return cls(directory, namespace, after, bytes_per_second, delete)


@dataclass(slots=True)
class Count:
    pages: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class Verified:
    """What was found out; `last` is the place of the last page, `found` names those in trouble."""

    counts: dict[Verdict, Count] = field(
        default_factory=lambda: {
            "good": Count(), "damaged": Count(), "unread": Count(), "foreign": Count()
        }
    )  # fmt: skip
    found: dict[Verdict, list[Checked]] = field(
        default_factory=lambda: {"good": [], "damaged": [], "unread": [], "foreign": []}
    )
    deleted: int = 0
    last: str = ""
    interrupted: bool = False

    def take(self, task: Task) -> Iterator[int]:
        """Read the files, and yield how many bytes each has; raises CommandError for the disk.

        A damaged one is deleted at once where that was asked for: what takes its name later is
        another.
        """
        pace = Pace(task.bytes_per_second)
        with reading(task.directory):
            pages = check_pages(
                task.directory, after=task.after, pace=pace, namespace=task.namespace
            )
            for checked in pages:
                self._count(checked)
                if task.delete and checked.verdict == "damaged" and checked.page is not None:
                    self.deleted += remove_damaged(task.directory, [checked.page])
                yield checked.nbytes

    def _count(self, checked: Checked) -> None:
        count = self.counts[checked.verdict]
        count.pages += 1
        count.nbytes += checked.nbytes
        if checked.page is not None:
            self.last = checked.place
        if checked.trouble is not None and len(self.found[checked.verdict]) < _REMEMBERED:
            self.found[checked.verdict].append(checked)

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {
            "complete": not self.interrupted,
            "last": self.last or None,
            "deleted_pages": self.deleted,
            **{
                verdict: {
                    "pages": count.pages,
                    "bytes": count.nbytes,
                    **({} if verdict == "good" else {"files": _files(self.found[verdict])}),
                }
                for verdict, count in self.counts.items()
            },
        }


def size_of(task: Task) -> int:
    """Return the bytes of the files that the task is about; opens none."""
    with reading(task.directory):
        fs = FileSystem()
        files = (
            walk(task.directory, fs)
            if task.namespace is None
            else walk_namespace(task.directory, task.namespace, fs)
        )
        return sum(
            file.nbytes for file in files if file.name is not None and _is_ahead(task, file.path)
        )


def _is_ahead(task: Task, path: str) -> bool:
    return task.after is None or Checked(path, None, 0).place > task.after


def _files(found: list[Checked]) -> list[dict[str, object]]:
    return [
        {"path": one.file, "bytes": one.nbytes, "trouble": one.trouble, "place": one.place}
        for one in found
    ]


def _named(directory: Path, prefix: str) -> BlockKey:
    known = sorted(digest for digest, _ in namespace_directories(directory, FileSystem()))
    found = [digest for digest in known if digest.hex().startswith(prefix)]
    if len(found) != 1:
        several = f"{len(found)} namespaces begin" if found else "no namespace begins"
        raise CommandError(f"{several} with {prefix} in {directory}")
    return found[0]
