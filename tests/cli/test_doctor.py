"""`doctor` is calm about a healthy machine, names each thing that is wrong with what helps, and
mends what is safe to mend; with --all it reads every page."""

import contextlib
import errno
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.children import Process, told
from kit.output import check_output
from kit.status import process_row
from kit.storage import FaultyDisk, Story, commit_to_disk, files_in, flip, open_store
from kit.storage.mounts import small_disk
from kit.storage.pages import BLOCK
from kit.units import KIB
from omlx_cache.control.replies import ColdHolding
from omlx_cache.reasons import EVICTED, NEW_TEXT, NOT_STORED
from omlx_cache.requests.explanation import RequestRecord
from omlx_cache.settings.machine import state_dir
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.doctor import directory, examination, machine, pages
from omlx_cache_daemon.doctor.directory import DIRECTORY, PLACE, passed_over
from omlx_cache_daemon.doctor.examination import (
    AskedProcess,
    Check,
    Context,
    Finding,
    asked,
    examine,
)
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.root import record_path

from .conftest import Cli, Start, Store

PAGES = 20
INSIDE: Sequence[Check] = (*PLACE, *DIRECTORY, machine.versions, *pages.PAGES)


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A directory as a store left it; nobody has written there lately."""
    with open_store(tmp_path / "cold") as store:
        commit_to_disk(store, Story(), *range(1, PAGES + 1))
    for page in files_in(tmp_path / "cold"):
        os.utime(page, (10**9, 10**9))
    return tmp_path / "cold"


@pytest.fixture(autouse=True)
def _own_places(
    monkeypatch: pytest.MonkeyPatch, runtime_dir: Path, environment: dict[str, str]
) -> None:
    """Checks that run here see this test's stores and directory only, too."""
    environment["OMLX_CACHE_MIN_FREE_BYTES"] = "0"
    for name in ("OMLX_CACHE_RUNTIME_DIR", "OMLX_CACHE_COLD_DIR", "OMLX_CACHE_MIN_FREE_BYTES"):
        monkeypatch.setenv(name, environment[name])


def _context(directory: Path, fs: FileSystem | None = None) -> Context:
    context = Context(directory, asked(), fs or FileSystem(), seconds=30.0)
    assert context.exists == directory.is_dir()
    return context


def _found(directory: Path, fs: FileSystem | None = None) -> list[Finding]:
    context = _context(directory, fs)
    return examine(context, INSIDE if context.exists else PLACE)


def _told(found: Sequence[Finding]) -> list[tuple[str, str, bool]]:
    return [(one.check, one.severity, one.fix is not None) for one in found]


def test_a_healthy_directory_and_one_that_is_not_made_yet_are_no_reason_for_words(
    cold: Path, tmp_path: Path, cli: Cli
) -> None:
    ended = cli("doctor", "--seconds", "60")
    # What a machine for tests has too little of is no trouble of the directory's.
    assert ended.out.startswith(f"{cold}: {PAGES} pages, ")
    assert f"{PAGES} pages read" in ended.out.splitlines()[0]
    assert _found(cold) == _found(tmp_path / "not-yet") == []


def _damage(cold: Path) -> None:
    for victim in files_in(cold)[:2]:
        os.truncate(victim, 17 * KIB)


def _leave(cold: Path) -> None:
    (files_in(cold)[0].parent / ".tmp-999999999-abcdef01-0").write_bytes(b"half")


def _empty(cold: Path) -> None:
    (files_in(cold)[0].parent.parent / "zz").mkdir(mode=0o700)


@pytest.mark.parametrize(
    ("spoil", "check", "severity"),
    [
        (_damage, "checksums", "error"),
        (_leave, "leftovers", "warning"),
        (_empty, "leftovers", "note"),
        (lambda cold: cold.chmod(0o755), "permissions", "warning"),
        (lambda cold: cold.chmod(0o775), "permissions", "error"),
        (lambda cold: files_in(cold)[0].chmod(0o666), "passed over", "warning"),
        (lambda cold: (cold / "budget.json").write_text("{torn"), "budget file", "error"),
        (lambda cold: (cold / "pins.json").write_text("{torn"), "pins file", "warning"),
    ],
)
def test_what_is_safe_to_mend_is_mended_and_nothing_sound_is_lost(
    cold: Path, spoil: Callable[[Path], object], check: str, severity: str
) -> None:
    spoil(cold)
    (finding,) = _found(cold)
    assert _told([finding]) == [(check, severity, True)]
    finding.mend()
    assert finding.failed is None
    assert finding.fixed
    assert _found(cold) == []
    assert len(files_in(cold)) == PAGES - (2 if check == "checksums" else 0)
    kept = [path.read_text() for path in cold.glob("*.unreadable")]
    assert kept == ["{torn"] * check.endswith("file")


def _give_away(cold: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(files_in(cold)[0], 12345, -1)


def _open_all(cold: Path) -> None:
    files_in(cold)[0].chmod(0o666)
    cold.chmod(0o755)


def _add_foreign(cold: Path) -> None:
    (files_in(cold)[0].parent / "notes.txt").write_text("mine")
    (cold / "holiday").mkdir()


def _nest(cold: Path) -> None:
    (cold / "inner").mkdir()
    (cold / "inner" / "CACHEDIR.TAG").write_text("")


def _use_later(cold: Path) -> None:
    later = time.time() + 86_400
    os.utime(files_in(cold)[0], (later, later))


def _pin_newer(cold: Path) -> None:
    (cold / "pins.json").write_text('{"version": 9, "pins": []}')


@pytest.mark.parametrize(
    ("spoil", "told", "words"),
    [
        (_give_away, [("passed over", "warning", False)], "another user's"),
        (
            _open_all,
            [("permissions", "warning", True), ("passed over", "warning", False)],
            "looked into",
        ),
        (
            _add_foreign,
            [("foreign files", "note", False)],
            "of other files, which omlx-cache does not delete",
        ),
        (_nest, [("foreign files", "warning", False)], "another cache, inside of this one"),
        (_use_later, [("newest page", "warning", False)], "in the future"),
        (_pin_newer, [("pins file", "warning", False)], "more than this version understands"),
    ],
)
def test_what_is_not_safe_to_mend_is_told_and_left(
    cold: Path,
    spoil: Callable[[Path], object],
    told: list[tuple[str, str, bool]],
    words: str,
) -> None:
    spoil(cold)
    found = _found(cold)
    assert _told(found) == told
    assert words in found[0].found
    assert not any(" rm " in f" {one.remedy}" for one in found)


def test_a_directory_whose_disk_is_not_mounted_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """What was remembered of it when it was: where, and its identity."""
    place, home = tmp_path / "disk", tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    system = "Darwin" if sys.platform == "darwin" else "Linux"
    memory = state_dir(system, {"XDG_STATE_HOME": str(tmp_path / "state")}, home)
    record = Path(record_path(memory, str(place)))
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"identity": "ab" * 16, "mount": str(place)}))
    (finding,) = (one for one in _found(place) if one.check == "directory")
    assert (finding.severity, finding.fix) == ("error", None)
    assert f"nothing is mounted at {place}" in finding.found
    assert (str(record) in finding.found, str(record) in finding.remedy) == (False, True)
    below = place / "cold"
    Path(record_path(memory, str(below))).write_text(record.read_text())
    named = cli("doctor", "--cold-dir", below)
    assert (named.code, named.err) == (1, "")
    assert f"nothing is mounted at {place}" in named.out
    assert "inodes" not in named.out, "the disk below is another one"
    cli("ls", "--cold-dir", place).assert_refused(1, f"nothing is mounted at {place}")
    assert f"mkdir -p {tmp_path / 'missing'}" in _found(tmp_path / "missing" / "cold")[0].found


def test_more_than_the_budget_is_told_with_the_command_that_helps(cli: Cli, cold: Path) -> None:
    (cold / "budget.json").write_text(
        json.dumps({"version": 1, "bytes": 100 * KIB, "set_by": "quota", "shares": {}})
    )
    small, finding = _found(cold)
    assert (small.check, finding.check) == ("budget", "budget")
    assert "has room for fewer than 8 pages" in small.found
    ended = cli(*finding.remedy.split()[1:], "--yes")
    assert ended.code == 0, ended.err
    assert [one.found for one in _found(cold)] == [small.found]
    assert cli("quota", "0", "--yes").code == 0
    context = _context(cold)
    assert examine(context, (machine.settings,)) == []
    assert "the budget (0 B) has room for fewer than 8 pages" in examine(context, INSIDE)[0].found


def test_a_full_disk_is_measured_by_the_budget_that_it_has(cold: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        shutil.copytree(cold, disk.path / "cold")
        with contextlib.suppress(OSError):
            (disk.path / "film.mov").write_bytes(bytes(2 << 20))
        context = _context(disk.path / "cold")
        (finding,) = examine(context, (*PLACE, machine.settings))
        assert (finding.check, finding.severity) == ("free space", "warning")


def test_pins_of_a_full_directory_are_told_with_what_they_leave(cli: Cli, cold: Path) -> None:
    used = json.loads(cli("quota", "--format", "json").out)["used_bytes"]
    assert cli("quota", used + 64 * KIB, "--yes").code == 0
    assert _found(cold) == []
    namespace = json.loads(cli("ls", "--format", "json").out)[0]["namespace"]
    assert cli("quota", "--pin", namespace).code == 0
    assert _told(_found(cold)) == [("pins", "warning", False)]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ("rw,relatime,emergency_ro", "its file system met an error"),
        ("ro,errors=remount-ro", "its file system met an error"),
        ("rw,errors=remount-ro", "mount it so that it can be written to"),
    ],
)
def test_a_disk_that_refuses_writes_is_told_with_what_helps(
    cold: Path, monkeypatch: pytest.MonkeyPatch, options: str, remedy: str
) -> None:
    disk, mount = FaultyDisk(), FileSystem().mount_point(cold)
    disk.fail["write"] = errno.EROFS
    monkeypatch.setattr(directory, "text_of", lambda path: f"/dev/x {mount} ext4 {options} 0 0\n")
    (finding,) = _found(cold, disk)
    assert (finding.check, finding.remedy.startswith(remedy)) == ("writable", True)
    assert "Read-only file system" in finding.found
    assert f"umount {mount} && fsck /dev/x; mount /dev/x {mount}" in finding.remedy


def test_free_space_is_judged_by_the_store_that_has_the_directory(
    serving: Process, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_MIN_FREE_BYTES", "900TiB")
    assert examine(_context(cold), PLACE) == []


def test_free_space_without_a_store_is_judged_by_the_disk_that_is_examined(
    cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMLX_CACHE_MIN_FREE_BYTES")
    with small_disk(tmp_path / "disk", "size=40m") as disk:
        shutil.copytree(cold, disk.path / "cold")
        (disk.path / "cold" / "budget.json").unlink(missing_ok=True)
        assert examine(_context(disk.path / "cold"), PLACE) == []


def test_files_that_no_cache_wrote_count_nowhere_and_cost_no_page(cli: Cli, cold: Path) -> None:
    with open_store(cold) as store:
        used = store.cold.usage().nbytes
    (cold / "film.mov").write_bytes(bytes(3 << 20))
    assert json.loads(cli("quota", "--format", "json").out)["used_bytes"] == used
    assert "nothing to delete" in cli("rm", "--to", used, "--yes").out
    # A link takes no room of what it names.
    (cold / "films").symlink_to(cold.parent)
    (finding,) = _found(cold)
    assert finding.found.startswith("3 MiB of other files, which omlx-cache does not delete")


def test_a_cause_that_is_mended_is_told_once(cli: Cli, cold: Path) -> None:
    cold.chmod(0o777)
    assert cli("doctor", "--cold-dir", cold).out.count("(mode 0777)") == 2
    mended = cli("doctor", "--cold-dir", cold, "--fix")
    assert (mended.code, mended.out.count("(mode 0777)")) == (0, 1)
    assert "fixed: chmod 700" in mended.out


def test_a_narrow_terminal_breaks_no_word_and_no_command(
    cli: Cli, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cold / "budget.json").write_text("{")
    wide = cli("doctor", "--cold-dir", cold).out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    narrow = cli("doctor", "--cold-dir", cold, COLUMNS="50").out
    assert narrow.split() == wide.split()
    long = [line.strip() for line in narrow.splitlines() if len(line) > 50]
    assert all(" -" in line or " " not in line for line in long)
    assert len(narrow.splitlines()) > len(wide.splitlines())


def test_pages_of_other_versions_are_told(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"format": 1, "software": {"mlx": "0.1", "mlx-lm": "0.1"}}
    (files_in(cold)[0].parent.parent / "namespace.json").write_text(json.dumps(old))
    current = [{"format": "9", "mlx": "1", "mlx-lm": "1"}]
    monkeypatch.setattr(pages, "current_versions", lambda theirs: current)
    assert _told(_found(cold)) == [("stale pages", "note", False)]


class _NoLocks(FileSystem):
    def lock(self, fd: int, *, shared: bool = False, deadline: float = 0.0) -> bool:
        return True

    def set_times(self, path: StrPath, time_ns: int) -> None:
        super().set_times(path, time_ns // 2_000_000_000 * 2_000_000_000)


def test_a_disk_that_cannot_do_what_is_asked_of_it_is_told(
    cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {one.check: one.severity for one in _found(cold, _NoLocks())}
    assert found == {"file system": "error", "times": "warning"}
    with small_disk(tmp_path / "disk", "size=10m,nr_inodes=4") as disk:
        inner = disk.path / "cache"
        inner.mkdir(mode=0o700)
        for number in range(2):
            (inner / f".{number}").touch()
        (one,) = _found(inner)
        assert (one.check, f"du --inodes -x {disk.path} |" in one.remedy) == (
            "inodes",
            True,
        )
    monkeypatch.setenv("OMLX_CACHE_MIN_FREE_BYTES", "1000TiB")
    (finding,) = _found(cold)
    assert (finding.check, "min_free_bytes" in finding.found) == ("free space", True)
    assert "other files take" in finding.found
    assert finding.remedy == "a larger disk, or less min_free_bytes"


def test_a_check_that_fails_or_hangs_is_a_finding_and_no_end(
    cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(context: Context) -> Iterator[Finding]:
        raise RuntimeError("no idea")

    ends = threading.Event()

    def hangs(context: Context) -> Iterator[Finding]:
        ends.wait(60)
        yield from ()

    monkeypatch.setattr(examination, "CHECK_SECONDS", 0.1)
    # After one that hangs no other is run.
    found = examine(Context(cold, seconds=0.0), (fails, hangs, fails))
    assert _told(found) == [("fails", "warning", False), ("hangs", "warning", False)]
    assert "failed itself: RuntimeError: no idea" in found[0].found
    ends.set()


def _machine(*checks: Check) -> dict[str, Finding]:
    context = _context(Path(os.environ["OMLX_CACHE_COLD_DIR"]))
    # What a machine for tests lacks is not what is looked for.
    found = examine(context, checks or machine.MACHINE)
    return {one.check: one for one in found if one.check != "memory"}


def test_a_misspelt_variable_is_an_error_and_not_a_refusal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = cli("doctor", "--format", "json", OMLX_CACHE_BLOK_SIZE="3")
    assert ended.code == 1
    (finding,) = (f for f in json.loads(ended.out)["findings"] if f["check"] == "variables")
    assert finding["remedy"] == "unset OMLX_CACHE_BLOK_SIZE"
    for hot, said in (("0", "hot_bytes and cold_bytes are 0"), ("many", "'many'")):
        monkeypatch.setenv("OMLX_CACHE_HOT_BYTES", hot)
        monkeypatch.setenv("OMLX_CACHE_COLD_BYTES", "0")
        found = examine(Context(Path("/nonexistent")), (machine.settings,))
        assert [said in one.found for one in found if one.severity == "error"] == [True]


def test_what_dead_processes_left_goes_and_the_runtime_directory_is_closed(
    runtime_dir: Path,
) -> None:
    gone = runtime_dir / "999999999-0.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(gone))
    (runtime_dir / "999999998-0.sock").symlink_to(runtime_dir / "nothing")
    runtime_dir.chmod(0o755)
    found = _machine()
    assert {"runtime directory", "sockets"} <= set(found)
    for finding in found.values():
        finding.mend()
    assert found["sockets"].fixed == "2 removed"
    assert list(runtime_dir.iterdir()) == []
    assert not {"runtime directory", "sockets"} & set(_machine())


def test_a_stopped_store_is_named_with_what_wakes_it(
    start_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = start_store()
    monkeypatch.setattr(examination, "ASK_SECONDS", 0.2)
    assert "answers" not in _machine()
    store.process.send_signal(signal.SIGSTOP)
    finding = _machine()["answers"]
    assert finding.severity == "error"
    if sys.platform == "linux":
        assert finding.remedy == f"kill -CONT {store.pid}"


EMBED = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="8MiB")) as store:
    print("ready", flush=True)
    for _ in sys.stdin:
        store.refresh()
        print(store.stats().cold.pages, flush=True)
"""


@pytest.fixture
def serving(cold: Path, start: Start) -> Process:
    """A real store on the directory, in another process, which says how many pages it knows."""
    return start()


def test_a_store_that_knows_other_pages_than_there_are_is_told(
    serving: Process, cold: Path
) -> None:
    context = _context(cold)
    assert [process.store.pid for process in context.users] == [serving.pid]
    assert examine(context, INSIDE) == []
    # A page that others may change since is a finding of its own, and no blame of the store.
    page = files_in(cold)[0]
    page.chmod(0o666)
    found = examine(_context(cold), (passed_over, pages.agreement))
    assert [one.check for one in found] == ["passed over"]
    # Behind everybody's back.
    page.unlink()
    (finding,) = examine(_context(cold), (pages.agreement,))
    assert f"knows {PAGES} pages, and the directory has {PAGES - 1}" in finding.found
    assert str(serving.pid) in finding.remedy


def _asked(
    cold: Path, version: str = "0.0.1", state: str = "ok", room: str = "ok", **told: Any
) -> AskedProcess:
    held = ColdHolding(pages=0, bytes=0, state=state, dir=str(cold), room=room)
    row = process_row(pid=11, version=version, cold=held)
    return AskedProcess(Client(cold / "none", 11), row, **told)


@pytest.mark.parametrize(
    ("state", "room", "least", "told"),
    [
        ("full", "ok", 0, ("note", "has room now")),
        ("ok", "short", 0, ("note", "has room now")),
        ("full", "ok", 2**60, ("warning", ": full")),
        ("failing: 5", "short", 0, ("warning", ": failing: 5")),
        ("unavailable: /x is gone with its disk", "ok", 0, ("note", "is there again")),
        ("unavailable: Permission denied", "ok", 0, ("error", "unavailable")),
    ],
)
def test_a_store_that_has_not_tried_a_disk_again_is_only_a_note(
    cold: Path, state: str, room: str, least: int, told: tuple[str, str]
) -> None:
    settings = {"min_free_bytes": {"kind": "derived", "value": least}}
    context = Context(cold, [_asked(cold, state=state, room=room, settings=settings)])
    (finding,) = examine(context, (machine.disks_of_stores,))
    assert (finding.severity, told[1] in finding.found) == (told[0], True)


def test_a_lost_disk_is_one_finding(cold: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = cold / "gone" / "below"
    monkeypatch.setattr(examination, "asked", lambda: [_asked(missing, state="unavailable: gone")])
    found = json.loads(cli("doctor", "--format", "json").out)["findings"]
    assert {"directory", "disks of stores"} & {one["check"] for one in found} == {"directory"}


def test_what_keeps_a_store_from_writing_is_told(cold: Path) -> None:
    figures = {"nbytes": 9, "own_limit_bytes": 8, "corrupt_pages": 2, "rationed_pages": 3}
    figures |= {"day_written_bytes": 29, "day_limit_bytes": 30}
    stats = {"cold": figures, "requests": {"misses": {"diverged": 4}}}
    checks = (machine.writes_of_stores, machine.histories)
    found = examine(Context(cold, [_asked(cold, stats=stats)]), checks)
    texts = (
        "(9 B) above its own cold_bytes",
        "daily_write_bytes 30 B",
        "2 damaged pages",
        "4 requests",
    )
    assert [text for text, one in zip(texts, found, strict=True) if text not in one.found] == []
    assert examine(Context(cold, [_asked(cold)]), checks) == []


def test_a_quota_of_less_than_a_server_was_given_is_told(cli: Cli, cold: Path) -> None:
    assert cli("quota", "16MiB", "--yes").code == 0
    for kind, value, count in (("flag", 40 << 20, 1), ("flag", 30 << 20, 0), ("derived", 1, 0)):
        settings = {"cold_bytes": {"kind": kind, "value": value}}
        context = Context(cold, [_asked(cold, settings=settings)])
        assert context.exists
        found = examine(context, (pages.budget,))
        assert [one.check for one in found] == ["budget"] * count


def _requests(count: int, at: float = math.inf, reason: str = EVICTED) -> list[RequestRecord]:
    """Requests of as many conversations, each as long as all pages."""
    namespace, tokens = Story().namespace.hex(), PAGES * BLOCK
    one = RequestRecord(1, at, namespace, "m", "", tokens, generated_tokens=1, reason=reason)
    return [one] * count


def test_a_full_budget_whose_pages_are_missed_is_told_with_a_larger_one(
    cli: Cli, cold: Path
) -> None:
    used = json.loads(cli("quota", "--format", "json").out)["used_bytes"]
    for budget, requests, expected in (
        (used, _requests(4), [("warning", True)]),
        # Few, and far from enough, or perhaps by chance.
        (used, _requests(3), [("warning", True)]),
        (used, _requests(1), [("note", True)]),
        # Of the budget before, or of one that is not full yet, and far from enough.
        (used, _requests(9, time.time() - 9), [("warning", False)]),
        (2 * used, _requests(8), [("warning", False)]),
        (used, _requests(9, reason=NEW_TEXT), []),
        (4 * used, _requests(4), []),
    ):
        assert cli("quota", str(budget), "--yes").code == 0
        context = Context(cold, [_asked(cold, requests=requests)])
        assert context.exists
        found = examine(context, (pages.budget,))
        assert [(one.severity, "had been evicted" in one.found) for one in found] == expected
        assert all(cli(*one.remedy.split("; ")[0].split()[1:]).code == 0 for one in found)
        if len(requests) == 4 and expected:
            wanted = json.loads(cli("quota", "--format", "json").out)["bytes"]
            # Twice what four conversations take: they grow.
            assert 6 * used < wanted < 12 * used


def test_a_conversation_that_the_budget_cannot_hold_is_told(cli: Cli, cold: Path) -> None:
    used = json.loads(cli("quota", "--format", "json").out)["used_bytes"]
    assert cli("quota", str(used), "--yes").code == 0
    turns = [
        replace(one, prompt_tokens=one.prompt_tokens * n // 4)
        for one in _requests(1, reason=NOT_STORED)
        for n in (3, 4, 5, 6)
    ]
    process = _asked(cold, requests=turns, settings={"cold_bytes": {"kind": "flag", "value": used}})
    context = Context(cold, [process])
    assert context.exists
    (finding,) = examine(context, (pages.budget,))
    assert f"one conversation of {process} takes" in finding.found
    assert f"; then restart {process} with cold_bytes " in finding.remedy
    assert cli(*finding.remedy.split("; ")[0].split()[1:]).code == 0
    wanted = json.loads(cli("quota", "--format", "json").out)["bytes"]
    assert 2.6 * used < wanted < 3.6 * used


def test_no_more_is_proposed_than_the_disk_has_room_for(cli: Cli, cold: Path) -> None:
    used = json.loads(cli("quota", "--format", "json").out)["used_bytes"]
    assert cli("quota", str(used), "--yes").code == 0
    disk = FaultyDisk()
    # Beside the cache the disk has as much room again, half of that, none, or no room for one
    # conversation.
    for free, most, remedy in (
        (2 * used, 2 * used, "omlx-cache quota "),
        (used // 2, used * 3 // 2, "omlx-cache quota "),
        (0, 0, "let fewer conversations go on"),
        (-used, 0, "free room on the disk: du "),
    ):
        disk.free_bytes = lambda path, free=free: free  # type: ignore[method-assign,misc]
        context = Context(cold, [_asked(cold, requests=_requests(4))], disk)
        assert context.exists
        (finding,) = examine(context, (pages.budget,))
        assert finding.remedy.startswith(remedy)
        if most:
            assert cli(*finding.remedy.split("; ")[0].split()[1:]).code == 0
            budget = json.loads(cli("quota", "--format", "json").out)["bytes"]
            assert 0.95 * most <= budget <= used + free
            assert cli("quota", str(used), "--yes").code == 0


def test_a_smaller_budget_is_proposed_where_other_files_take_too_little(
    cli: Cli, cold: Path
) -> None:
    used = json.loads(cli("quota", "--format", "json").out)["used_bytes"]
    assert cli("quota", str(4 * used), "--yes").code == 0
    disk = FaultyDisk()
    disk.free_bytes = lambda path: used  # type: ignore[method-assign]
    for others, remedy in (
        (0, "omlx-cache quota "),
        (used // 10, "omlx-cache quota "),
        (5 * used, "free room on the disk: du "),
    ):
        disk.taken_bytes = lambda path, n=others: used + n  # type: ignore[method-assign,misc]
        (finding,) = _found(cold, disk)
        assert (finding.check, finding.remedy.startswith(remedy)) == ("free space", True)


def test_processes_of_different_versions_on_a_directory_are_told(cold: Path) -> None:
    processes = [_asked(cold), _asked(cold, "0.0.2")]
    (finding,) = examine(Context(cold, processes), (machine.versions,))
    assert "0.0.1" in finding.found
    assert "0.0.2" in finding.found


def test_all_pages_are_read_and_each_damaged_one_is_named(cli: Cli, cold: Path) -> None:
    damaged = [files_in(cold)[number] for number in (0, 5)]
    for page in damaged:
        flip(page)
    ended = cli("doctor", "--all")
    assert ended.code == 1
    assert "100 % (" in ended.err
    assert all(
        f"{page.name}: corrupt: the payload does not match its checksum" in ended.out
        for page in damaged
    )
    assert "omlx-cache doctor --fix mends 1 of these" in ended.out
    assert all(page.exists() for page in damaged)


def test_damaged_pages_are_deleted_on_request_and_a_running_store_knows(
    cli: Cli, cold: Path, serving: Process
) -> None:
    damaged = [files_in(cold)[number] for number in (0, 5)]
    for page in damaged:
        flip(page)
    ended = cli("doctor", "--all", "--fix", "--format", "json")
    document = json.loads(ended.out)
    check_output("doctor", document)
    (finding,) = (one for one in document["findings"] if one["check"] == "checksums")
    assert (ended.code, document["errors"], finding["fixed"]) == (0, 0, "2 deleted")
    assert document["directories"][0]["sampled_pages"] == PAGES
    assert not any(page.exists() for page in damaged)
    assert int(told(serving)) == PAGES - 2, "the store counts what is left, and no more"


def test_ctrl_c_says_what_was_found_so_far(cold: Path, environment: dict[str, str]) -> None:
    for page in files_in(cold):
        flip(page)
    # A megabyte would take a second.
    arguments = [sys.executable, "-m", "omlx_cache_daemon", "doctor", "--all", "--rate", "40KB"]
    process = subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # The first tenth was read.
    assert process.stderr.readline().startswith("reading: ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: the rest was not read" in err
    assert "damaged: " in out
