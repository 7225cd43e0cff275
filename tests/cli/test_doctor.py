"""`doctor` is calm about a healthy machine, names each thing that is wrong with what helps, and
mends what is safe to mend."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.output import check_output
from kit.storage import Story, files_in, open_store, store_page
from kit.storage.mounts import small_disk
from omlx_cache.settings.machine import state_dir
from omlx_cache_daemon.doctor import examination, pages, software
from omlx_cache_daemon.doctor.context import Context, Process, asked
from omlx_cache_daemon.doctor.examination import DIRECTORY, MACHINE, examine, fix
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_daemon.stores import RunningStore
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.root import record_path

from .conftest import Cli, Store

KIB = 1024
PAGES = 20


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A directory as a store left it."""
    with open_store(tmp_path / "cold") as store:
        story = Story()
        for number in range(1, PAGES + 1):
            assert store_page(store, story.page(number))
        assert store.flush(60)
    return tmp_path / "cold"


@pytest.fixture(autouse=True)
def _own_places(
    monkeypatch: pytest.MonkeyPatch, runtime_dir: Path, environment: dict[str, str]
) -> None:
    """Checks that run here see this test's stores and directory only, too."""
    for name in ("OMLX_CACHE_RUNTIME_DIR", "OMLX_CACHE_COLD_DIR"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setenv("OMLX_CACHE_MIN_FREE_BYTES", "0")


def _context(directory: Path, **options: object) -> Context:
    known: dict[str, object] = {"processes": [], "seconds": 30.0}
    return Context(directory, **{**known, **options})  # type: ignore[arg-type]


def _found(directory: Path, **options: object) -> list[Finding]:
    return examine(_context(directory, **options), DIRECTORY)


def _mended(directory: Path, check: str) -> Finding:
    """The one finding about a directory, which `--fix` mends, so that there is none afterwards."""
    (finding,) = _found(directory)
    assert finding.check == check
    fix([finding])
    assert finding.failed is None
    assert finding.fixed
    assert _found(directory) == []
    return finding


def test_a_healthy_directory_is_no_reason_for_words(cli: Cli, cold: Path) -> None:
    ended = cli("doctor", OMLX_CACHE_MIN_FREE_BYTES="0")
    lines = ended.out.splitlines()
    # What a machine for tests has too little of is no trouble of the directory's.
    assert f"{cold}: {PAGES} pages" in lines[0]
    assert f"{PAGES} pages read" in lines[0]
    assert _found(cold) == []


def test_a_directory_that_no_store_made_yet_is_no_trouble(tmp_path: Path) -> None:
    assert _found(tmp_path / "cold") == []


def test_damaged_pages_are_an_error_and_go(cold: Path) -> None:
    victims = files_in(cold)[:2]
    for victim in victims:
        os.truncate(victim, 17 * KIB)
    finding = _mended(cold, "checksums")
    assert finding.severity == "error"
    assert f"2 of {PAGES} pages" in finding.found
    assert [victim.exists() for victim in victims] == [False, False]
    assert len(files_in(cold)) == PAGES - 2


def test_what_a_dead_writer_left_goes_and_what_is_being_written_stays(cold: Path) -> None:
    shard = files_in(cold)[0].parent
    dead = shard / ".tmp-999999999-abcdef01-0"
    dead.write_bytes(b"half")
    disk = FileSystem()
    living = str(shard / f".tmp-{os.getpid()}-abcdef02-0")
    fd = disk.reserve(living, 100)
    try:
        (finding,) = _found(cold)
        assert "1 files are half written" in finding.found
        fix([finding])
        assert not dead.exists()
        assert os.path.exists(living)
    finally:
        os.close(fd)


def test_empty_directories_go(cold: Path) -> None:
    shard = files_in(cold)[0].parent
    empty = shard.with_name(next(f"{n:02x}" for n in range(256) if not _shard(shard, n).exists()))
    empty.mkdir(mode=0o700)
    assert _mended(cold, "leftovers").severity == "note"
    assert not empty.exists()


def _shard(shard: Path, number: int) -> Path:
    return shard.with_name(f"{number:02x}")


def test_modes_that_let_others_in_are_closed(cold: Path) -> None:
    cold.chmod(0o755)
    assert _mended(cold, "permissions").severity == "warning"
    cold.chmod(0o775)
    assert [one.severity for one in _found(cold)] == ["error"]
    fix(_found(cold))
    assert cold.stat().st_mode & 0o777 == 0o700


def test_pages_that_others_could_not_have_reached_are_closed_to_them(cold: Path) -> None:
    page = files_in(cold)[0]
    page.chmod(0o666)
    finding = _mended(cold, "passed over")
    assert "1 pages or their directories may be changed" in finding.found
    assert page.stat().st_mode & 0o777 == 0o600


def test_pages_that_others_may_have_changed_are_not_trusted_by_a_fix(cold: Path) -> None:
    page = files_in(cold)[0]
    page.chmod(0o666)
    cold.chmod(0o755)
    fixable = {one.check: one.fix is not None for one in _found(cold)}
    assert fixable == {"permissions": True, "passed over": False}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_anothers_pages_are_named_and_left(cold: Path) -> None:
    page = files_in(cold)[0]
    os.chown(page, 12345, -1)
    (finding,) = _found(cold)
    assert finding.check == "passed over"
    assert str(page) in finding.found
    assert finding.fix is None


def test_a_budget_that_cannot_be_read_is_set_aside_and_not_lost(cold: Path) -> None:
    (cold / "budget.json").write_text("{torn")
    assert _mended(cold, "budget file").severity == "error"
    assert (cold / "budget.json.unreadable").read_text() == "{torn"


def test_things_that_are_no_caches_are_noted(cold: Path) -> None:
    (files_in(cold)[0].parent / "notes.txt").write_text("mine")
    (cold / "holiday").mkdir()
    (cold / "shopping.txt").write_text("milk")
    (finding,) = _found(cold)
    assert (finding.check, finding.severity, finding.fix) == ("foreign files", "note", None)
    assert finding.found.startswith("3 files are no cache's")
    assert not finding.remedy.startswith("rm ")


@pytest.mark.parametrize("sign", ["CACHEDIR.TAG", "budget.json"])
def test_a_cache_that_was_moved_into_the_directory_is_known_and_not_for_deletion(
    cold: Path, sign: str
) -> None:
    inner = cold / "omlx-cache"
    inner.mkdir()
    (inner / sign).write_text("{}")
    (cold / "shopping.txt").write_text("milk")
    cache, other = _found(cold)
    assert (cache.check, cache.severity, cache.fix) == ("foreign files", "warning", None)
    assert cache.found == f"{inner} is another cache, inside of this one"
    assert cache.remedy == f"move it out of {cold}: mv {inner} {cold}-2"
    assert other.found.startswith("1 files are no cache's")
    assert not any(" rm " in f" {one.remedy}" for one in (cache, other))


def test_a_directory_whose_disk_is_not_mounted_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was remembered of it when it was: where, and its identity."""
    place = tmp_path / "disk"
    place.mkdir()
    system = "Darwin" if sys.platform == "darwin" else "Linux"
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    memory = state_dir(system, {"XDG_STATE_HOME": str(tmp_path / "state")}, home)
    record = Path(record_path(memory, str(place)))
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"identity": "ab" * 16, "mount": str(place)}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = [one for one in _found(place) if one.check == "directory"]
    assert [(one.severity, one.fix) for one in found] == [("error", None)]
    assert f"nothing is mounted at {place}" in found[0].found
    assert str(record) in found[0].found
    assert _found(tmp_path / "missing" / "cold")[0].found.endswith(
        f"make the directory above (mkdir -p {tmp_path / 'missing'})"
    )


def test_pins_that_cannot_be_read_are_set_aside_and_newer_ones_are_not(cold: Path) -> None:
    pins = cold / "pins.json"
    pins.write_text("{torn")
    assert _mended(cold, "pins file").severity == "warning"
    assert (cold / "pins.json.unreadable").read_text() == "{torn"
    pins.write_text('{"version": 9, "pins": []}')
    (newer,) = _found(cold)
    assert (newer.check, newer.fix) == ("pins file", None)


def test_more_than_the_budget_is_told_with_the_command_that_helps(cli: Cli, cold: Path) -> None:
    (cold / "budget.json").write_text(
        json.dumps({"version": 1, "bytes": 100 * KIB, "set_by": "quota", "shares": {}})
    )
    (finding,) = _found(cold)
    assert finding.check == "budget"
    ended = cli(*finding.remedy.split()[1:], "--yes")
    assert ended.code == 0, ended.err
    assert _found(cold) == []


def test_pages_of_other_versions_and_of_the_future_are_told(
    cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = files_in(cold)[0]
    later = time.time() + 86_400
    os.utime(page, (later, later))
    document = page.parent.parent / "namespace.json"
    old = {"format": 1, "software": {"mlx": "0.1", "mlx-lm": "0.1"}}
    document.write_text(json.dumps(old))
    monkeypatch.setattr(
        software, "current_versions", lambda theirs: [{"format": "9", "mlx": "1", "mlx-lm": "1"}]
    )
    found = {one.check: one for one in _found(cold)}
    assert set(found) == {"newest page", "stale pages"}
    assert found["stale pages"].severity == "note"
    assert "in the future" in found["newest page"].found


def test_a_disk_without_room_or_files_is_told(
    cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_MIN_FREE_BYTES", "1000TiB")
    (finding,) = _found(cold)
    assert finding.check == "free space"
    assert "min_free_bytes" in finding.found
    monkeypatch.setenv("OMLX_CACHE_MIN_FREE_BYTES", "0")
    with small_disk(tmp_path / "disk", "size=10m,nr_inodes=4") as disk:
        inner = disk.path / "cache"
        inner.mkdir(mode=0o700)
        for number in range(2):
            (inner / f".{number}").touch()
        assert [one.check for one in _found(inner)] == ["inodes"]


class _NoLocks(FileSystem):
    def try_lock(self, fd: int, *, shared: bool = False) -> bool:
        return True

    def set_times(self, path: StrPath, time_ns: int) -> None:
        super().set_times(path, time_ns // 2_000_000_000 * 2_000_000_000)


def test_a_file_system_that_cannot_do_what_is_asked_of_it_is_told(cold: Path) -> None:
    found = {one.check: one.severity for one in _found(cold, fs=_NoLocks())}
    assert found == {"file system": "error", "times": "warning"}


def test_a_check_that_fails_is_a_finding_and_no_end(
    cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(context: Context) -> list[Finding]:
        raise RuntimeError("no idea")

    monkeypatch.setitem(examination.DIRECTORY, "free space", broken)
    (finding,) = _found(cold)
    assert "'free space' failed itself: RuntimeError: no idea" in finding.found
    assert finding.severity == "warning"


def _machine(**options: object) -> dict[str, Finding]:
    context = _context(Path(os.environ["OMLX_CACHE_COLD_DIR"]), **options)
    # What a machine for tests lacks is not what is looked for.
    return {one.check: one for one in examine(context, MACHINE) if one.check != "memory"}


@pytest.mark.nightly
def test_a_misspelt_variable_is_an_error_and_not_a_refusal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = cli("doctor", "--format", "json", OMLX_CACHE_BLOK_SIZE="3")
    assert ended.code == 1
    (finding,) = (f for f in json.loads(ended.out)["findings"] if f["check"] == "variables")
    assert finding["remedy"] == "unset OMLX_CACHE_BLOK_SIZE"
    monkeypatch.setenv("OMLX_CACHE_HOT_BYTES", "0")
    monkeypatch.setenv("OMLX_CACHE_COLD_BYTES", "0")
    settings = {"settings": MACHINE["settings"]}
    found = examine(_context(Path("/nonexistent")), settings)
    assert ("error", "hot_bytes and cold_bytes are 0") in [(f.severity, f.found) for f in found]
    monkeypatch.setenv("OMLX_CACHE_HOT_BYTES", "many")
    (finding,) = examine(_context(Path("/nonexistent")), settings)
    assert "many" in finding.found


def test_sockets_of_dead_processes_and_dangling_links_go(runtime_dir: Path) -> None:
    gone = runtime_dir / "999999999-0.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(gone))
    (runtime_dir / "999999998-0.sock").symlink_to(runtime_dir / "nothing")
    finding = _machine()["sockets"]
    fix([finding])
    assert finding.fixed == "2 removed"
    assert list(runtime_dir.iterdir()) == []
    assert "sockets" not in _machine()


def test_a_runtime_directory_that_others_may_look_into_is_closed(runtime_dir: Path) -> None:
    runtime_dir.chmod(0o755)
    finding = _machine()["runtime directory"]
    fix([finding])
    assert runtime_dir.stat().st_mode & 0o777 == 0o700
    assert "runtime directory" not in _machine()


def test_a_stopped_store_is_named_with_what_wakes_it(
    start_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = start_store()
    monkeypatch.setattr("omlx_cache_daemon.doctor.context.ASK_SECONDS", 0.2)
    assert "answers" not in _machine(processes=asked())
    store.process.send_signal(signal.SIGSTOP)
    finding = _machine(processes=asked())["answers"]
    assert finding.severity == "error"
    if sys.platform == "linux":
        assert finding.remedy == f"kill -CONT {store.pid}"


@pytest.fixture
def serving(cold: Path, environment: dict[str, str]) -> "Iterator[subprocess.Popen[str]]":
    """A real store on the directory, in another process; nobody has written there lately."""
    for page in files_in(cold):
        os.utime(page, (10**9, 10**9))
    script = (
        "import sys\nfrom omlx_cache import BlockStore, CacheSettings\n"
        "with BlockStore(CacheSettings(hot_bytes='8MiB', min_free_bytes=0)):\n"
        "    print('ready', flush=True)\n    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate(timeout=60)


def test_a_store_that_knows_other_pages_than_there_are_is_told(
    serving: "subprocess.Popen[str]", cold: Path
) -> None:
    context = _context(cold, processes=asked())
    assert [process.store.pid for process in context.users] == [serving.pid]
    assert examine(context, DIRECTORY) == []
    # Behind everybody's back.
    files_in(cold)[0].unlink()
    (finding,) = examine(_context(cold, processes=asked()), {"agreement": pages.agreement})
    assert f"knows {PAGES} pages, and there are {PAGES - 1}" in finding.found
    assert str(serving.pid) in finding.remedy


def test_a_store_is_not_blamed_for_a_page_that_is_passed_over_since(
    serving: "subprocess.Popen[str]", cold: Path
) -> None:
    files_in(cold)[0].chmod(0o666)
    checks = {name: DIRECTORY[name] for name in ("passed over", "agreement")}
    found = examine(_context(cold, processes=asked()), checks)
    assert [one.check for one in found] == ["passed over"]


def test_processes_of_different_versions_on_a_directory_are_told(cold: Path) -> None:
    said = {"cold": {"dir": str(cold), "state": "ok"}}
    processes = [
        Process(RunningStore(cold / "none", pid), False, {"version": version}, said, None)
        for pid, version in ((11, "0.0.1"), (12, "0.0.2"))
    ]
    context = _context(cold, processes=processes)
    (finding,) = examine(context, {"versions": DIRECTORY["versions"]})
    assert "0.0.1" in finding.found
    assert "0.0.2" in finding.found


@pytest.mark.nightly
def test_fix_says_what_it_did_and_errors_that_are_mended_count_no_more(
    cli: Cli, cold: Path
) -> None:
    os.truncate(files_in(cold)[0], 17 * KIB)
    told = cli("doctor", OMLX_CACHE_MIN_FREE_BYTES="0")
    assert told.code == 1
    assert "omlx-cache doctor --fix mends 1 of these" in told.out
    mended = json.loads(cli("doctor", "--fix", "--format", "json").out)
    check_output("doctor", mended)
    assert mended["errors"] == 0
    assert [f["fixed"] is not None for f in mended["findings"] if f["check"] == "checksums"] == [
        True
    ]
