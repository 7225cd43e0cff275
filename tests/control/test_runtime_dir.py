import os
import stat
from pathlib import Path

import pytest

from omlx_cache.control.errors import ControlError
from omlx_cache.control.socket_paths import (
    MAX_PATH_BYTES,
    candidates,
    first_usable,
    prepare,
    socket_name,
    sockets_in,
    why_unseen,
)
from omlx_cache.settings import ConfigError

_FALLBACK = Path(f"/tmp/omlx-cache-{os.geteuid()}")


@pytest.mark.parametrize(
    ("environ", "system", "expected"),
    [
        ({"OMLX_CACHE_RUNTIME_DIR": "/run/mine", "XDG_RUNTIME_DIR": "/u"}, "linux", ["/run/mine"]),
        ({"XDG_RUNTIME_DIR": "/run/user/1"}, "linux", ["/run/user/1/omlx-cache", _FALLBACK]),
        ({"XDG_RUNTIME_DIR": "run"}, "linux", [_FALLBACK]),
        ({"TMPDIR": "/var/T/"}, "darwin", ["/var/T/omlx-cache", _FALLBACK]),
        ({"TMPDIR": "/var/T/"}, "linux", [_FALLBACK]),
    ],
)
def test_the_environment_says_where_sockets_may_lie(
    environ: dict[str, str], system: str, expected: list[str | Path]
) -> None:
    assert candidates(environ, system) == list(map(Path, expected))


def test_a_place_too_long_for_a_socket_is_passed_over() -> None:
    longest, too_long = "/" + "x" * 75, "/" + "x" * 76
    assert candidates({"TMPDIR": longest}, "darwin") == [Path(longest, "omlx-cache"), _FALLBACK]
    assert candidates({"TMPDIR": too_long}, "darwin") == [_FALLBACK]
    socket = socket_name(Path(longest, "omlx-cache"), 4194304, 99)
    assert len(os.fsencode(socket)) == MAX_PATH_BYTES
    with pytest.raises(ControlError, match="at most 103 bytes"):
        prepare(Path("/" + "x" * 90))
    with pytest.raises(ConfigError, match="OMLX_CACHE_RUNTIME_DIR: got ''"):
        candidates({"OMLX_CACHE_RUNTIME_DIR": ""}, "linux")


def test_an_open_directory_is_tightened_when_only_sockets_lie_in_it(runtime_dir: Path) -> None:
    loose = runtime_dir / "run"
    loose.mkdir()
    loose.chmod(0o777)
    (loose / "12-0.sock").touch()
    assert stat.S_IMODE(prepare(loose).stat().st_mode) == 0o700


def test_an_open_directory_with_other_files_is_refused_and_left_alone(runtime_dir: Path) -> None:
    home = runtime_dir / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "letter.txt").touch()
    with pytest.raises(ControlError, match=r"letter\.txt"):
        prepare(home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


def test_a_link_is_refused(runtime_dir: Path) -> None:
    (runtime_dir / "real").mkdir(mode=0o700)
    (runtime_dir / "link").symlink_to(runtime_dir / "real")
    with pytest.raises(ControlError, match="not a directory of this user"):
        prepare(runtime_dir / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away takes root")
def test_another_user_s_directory_is_refused_and_its_sockets_are_not_seen(
    runtime_dir: Path,
) -> None:
    theirs = runtime_dir / "theirs"
    theirs.mkdir(mode=0o700)
    os.mkfifo(theirs / "1-0.sock")
    os.chown(theirs, 12345, 12345)
    with pytest.raises(ControlError, match="not a directory of this user"):
        prepare(theirs)
    assert sockets_in(theirs) == []
    assert why_unseen(theirs) == "belongs to another user"


def test_the_first_usable_place_is_taken(runtime_dir: Path) -> None:
    (runtime_dir / "file").touch()
    places = [runtime_dir / "missing" / "x", runtime_dir / "file", runtime_dir / "good"]
    assert first_usable(places) == runtime_dir / "good"
    with pytest.raises(ControlError, match=r"missing.*file"):
        first_usable(places[:2])


def test_only_sockets_with_the_right_name_are_listed(runtime_dir: Path) -> None:
    (runtime_dir / "1-0.sock").write_text("no socket")
    (runtime_dir / "notes").touch()
    assert sockets_in(runtime_dir) == sockets_in(runtime_dir / "absent") == []
    # Only a place that cannot be looked into has a reason.
    assert why_unseen(runtime_dir / "notes") == "is not a directory"
    assert why_unseen(runtime_dir) == ""
    assert why_unseen(runtime_dir / "absent") == ""
