"""An archive gives back what went in, and nothing else gets in with it."""

import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.storage import Story, open_cold, write_pages
from omlx_cache.control.cold_files import scan
from omlx_cache_daemon.archive import (
    MANIFEST_FILE,
    READ_BYTES,
    Archive,
    ArchiveError,
    Document,
    Manifest,
    PageAt,
    Unpacked,
    decode_manifest,
    encode_manifest,
    in_order,
    pack,
    parse_path,
)
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import name_of, page_path
from omlx_cache_storage.keys import namespace_digest
from omlx_cache_storage.page import Page, WriteResult

STAMP = 1_700_000_000_123_456_789
_STORY = Story("a")
_PATH = PageAt(_STORY.namespace, name_of(_STORY.meta(1))).path
Members = list[tuple[tarfile.TarInfo, bytes]]


class Into:
    """A target that is a tier."""

    def __init__(self, tier: ColdTier) -> None:
        self.tier = tier

    def has(self, page: PageAt) -> bool:
        return page.name.id in self.tier

    def write(self, page: Page, time_ns: int, document: Document) -> WriteResult:
        return self.tier.write(page, time_ns, document)


def _tier(directory: Path, limit: int = 1 << 24) -> ColdTier:
    return open_cold(directory, limit)


def _fill(directory: Path, *stories: Story, count: int = 4) -> None:
    for story in stories:
        numbers = range(1, count + 1)
        write_pages(directory, story, *numbers, stamp_ns=STAMP, limit_bytes=1 << 24)


def _manifest(*stories: Story, pages: int = 100) -> Manifest:
    return Manifest(pages, 1 << 30, {s.namespace.hex(): {} for s in stories}, "everything")


def _packed(directory: Path, *stories: Story) -> bytes:
    found = in_order(scan(directory))
    to = io.BytesIO()
    *_, done = pack(found, _manifest(*stories), to)
    assert done["pages"] == len(found)
    return to.getvalue()


def _files(directory: Path) -> dict[str, tuple[bytes, int]]:
    paths = [p for p in directory.rglob("*") if p.is_file() and p.suffix == ".safetensors"]
    return {str(p.relative_to(directory)): (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}


def _unpack(raw: bytes, directory: Path, limit: int = 1 << 24) -> Unpacked:
    tier = _tier(directory, limit)
    try:
        return _read(raw, tier)
    finally:
        tier.check_integrity()
        tier.close()


def _read(raw: bytes, tier: ColdTier) -> Unpacked:
    *_, done = Archive(io.BytesIO(raw)).unpack(Into(tier))
    return done


@pytest.fixture
def story() -> Story:
    return Story("a", nbytes=1 << 14)


@pytest.fixture
def archive(tmp_path: Path, story: Story) -> bytes:
    _fill(tmp_path / "from", story)
    return _packed(tmp_path / "from", story)


@settings(max_examples=15)
@given(
    names=st.lists(st.sampled_from("abc"), unique=True, min_size=1),
    count=st.integers(1, 5),
    nbytes=st.sampled_from([0, 2, 4096, 70_000]),
)
def test_what_goes_in_comes_out_byte_for_byte_with_its_times(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], count: int, nbytes: int
) -> None:
    directory = tmp_path_factory.mktemp("archive")
    stories = [Story(name, nbytes=nbytes) for name in names]
    _fill(directory / "from", *stories, count=count)
    raw = _packed(directory / "from", *stories)
    done = _unpack(raw, directory / "to")
    assert done.pages["imported"] == done.pages.total() == len(names) * count
    assert _files(directory / "from") == _files(directory / "to")
    again = _unpack(raw, directory / "to")
    assert again.pages["present"] == again.pages.total() == len(names) * count


def test_any_tar_reads_it_and_what_tar_packs_again_is_read(
    tmp_path: Path, story: Story, archive: bytes
) -> None:
    (tmp_path / "a.tar").write_bytes(archive)
    (tmp_path / "by-tar").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "a.tar", "-C", tmp_path / "by-tar"], check=True)
    assert _files(tmp_path / "by-tar") == _files(tmp_path / "from")
    namespace = story.namespace.hex()
    for form in ("gnu", "posix"):
        packed = tmp_path / f"{form}.tar"
        options = ["tar", f"--format={form}", "-C", tmp_path / "by-tar", "-cf", packed]
        subprocess.run([*options, MANIFEST_FILE, namespace], check=True)
        assert _unpack(packed.read_bytes(), tmp_path / form).pages["imported"] == 4


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_an_archive_that_ends_anywhere_gives_a_whole_beginning_of_each_chain(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    directory, story = tmp_path_factory.mktemp("cut"), Story("a", nbytes=4096)
    _fill(directory / "from", story)
    raw = _packed(directory / "from", story)
    with pytest.raises(ArchiveError):
        _unpack(raw[: cut * len(raw) // 10_001], directory / "to")
    files = _files(directory / "to")
    assert files.items() <= _files(directory / "from").items()
    tier = _tier(directory / "to")
    assert [n for n in range(1, 5) if story.id(n) in tier] == [*range(1, len(files) + 1)]
    # Run again with the whole of it, it goes on.
    assert _read(raw, tier).pages["imported"] == 4 - len(files)
    tier.close()


def _members(raw: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        return [(i, f.read()) for i in archive if (f := archive.extractfile(i)) is not None]


def _join(members: Members) -> bytes:
    parts = []
    for info, raw in members:
        padding = bytes(-len(raw) % 512)
        parts += [info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"), raw, padding]
    return b"".join(parts) + bytes(1024)


def _changed(**fields: object) -> Callable[[Members], None]:
    """Return what changes the header of the first page; `prefix` stands before its name."""

    def change(members: Members) -> None:
        info = members[1][0]
        info.pax_headers, info.name = {}, f"{fields.pop('prefix', '')}{info.name}"
        for name, value in fields.items():
            setattr(info, name, value)

    return change


def _announce_nothing(members: Members) -> None:
    raw = encode_manifest(Manifest(0, 0, decode_manifest(members[0][1]).namespaces))
    members[0][0].size = len(raw)
    members[0] = members[0][0], raw


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_changed(prefix="/"), "no name of a page"),
        (_changed(prefix="../"), "no name of a page"),
        (_changed(prefix="x"), "no name of a page"),
        (_changed(type=tarfile.SYMTYPE, linkname="/etc/passwd"), "neither a file"),
        (_changed(type=tarfile.LNKTYPE, linkname="../../x"), "neither a file"),
        (_changed(type=tarfile.CHRTYPE), "neither a file"),
        (_changed(type=tarfile.FIFOTYPE), "neither a file"),
        (_changed(type=tarfile.GNUTYPE_SPARSE), "neither a file"),
        (_changed(size=1 << 31), "as no page has"),
        (_changed(size=1 << 50), "as no page has"),
        (lambda members: members.append(members[1]), "came twice"),
        (lambda members: members.reverse(), "begins with"),
        (lambda members: members.clear(), "begins with"),
        (lambda members: members.pop(0), "begins with"),
        (_announce_nothing, "more than was announced"),
    ],
)
def test_a_hostile_archive_ends_with_an_error_and_leaves_nothing_of_its_own(
    tmp_path: Path, archive: bytes, change: Callable[[Members], object], says: str
) -> None:
    members = _members(archive)
    change(members)
    with pytest.raises(ArchiveError, match=says):
        _unpack(_join(members), tmp_path / "to")
    assert _files(tmp_path / "to").items() <= _files(tmp_path / "from").items()
    assert {p.name for p in tmp_path.iterdir()} == {"from", "to"}


@pytest.mark.parametrize("cut", [512, 1024])
def test_an_archive_without_its_whole_end_mark_ends_with_an_error(
    tmp_path: Path, archive: bytes, cut: int
) -> None:
    with pytest.raises(ArchiveError, match="ends too early"):
        _unpack(archive[:-cut], tmp_path / "to")
    assert len(_files(tmp_path / "to")) == 4


@pytest.mark.parametrize("spoilt", [bytes(512), b"\xff" * 512])
def test_a_header_that_is_damaged_is_not_taken_for_the_end(
    tmp_path: Path, archive: bytes, spoilt: bytes
) -> None:
    at = archive.rindex(b"ustar") - 257
    with pytest.raises(ArchiveError, match=r"ends too early|damaged"):
        _unpack(archive[:at] + spoilt + archive[at + 512 :], tmp_path / "to")


@pytest.mark.parametrize("mtime", ["nan", "inf", "-5", "1e400", "x", "9" * 400])
def test_a_time_that_is_none_is_no_reason_to_fail(
    tmp_path: Path, archive: bytes, mtime: str
) -> None:
    members = _members(archive)
    members[1][0].pax_headers = {"mtime": mtime}
    assert _unpack(_join(members), tmp_path / "to").pages["imported"] == 4


def test_a_flipped_bit_or_another_page_is_none_and_the_others_come(
    tmp_path: Path, archive: bytes
) -> None:
    members = _members(archive)
    spoilt = bytearray(members[1][1])
    spoilt[-1] ^= 1
    members[1] = members[1][0], bytes(spoilt)
    members[2] = members[2][0], members[3][1]
    done = _unpack(_join(members), tmp_path / "to")
    assert (done.pages["damaged"], done.pages["imported"]) == (2, 2)
    assert "checksum" in done.damage[0]
    assert "another page" in done.damage[1]


def test_a_page_of_a_namespace_without_a_document_is_refused(tmp_path: Path, story: Story) -> None:
    _fill(tmp_path / "from", story)
    raw = _packed(tmp_path / "from", Story("b"))
    with pytest.raises(ArchiveError, match="was not announced"):
        _unpack(raw, tmp_path / "to")


def test_a_document_must_be_what_its_digest_was_made_from() -> None:
    document: Document = {"model": "m", "block_size": 256}
    digest = namespace_digest(document).hex()
    sound = Manifest(1, 1, {digest: {**document, "label": "x"}}, "a", "b")
    assert decode_manifest(encode_manifest(sound)) == sound
    false = Manifest(1, 1, {digest: {**document, "model": "n"}})
    with pytest.raises(ArchiveError, match="document of something else"):
        decode_manifest(encode_manifest(false))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"format": "omlx-cache archive"}',
        b'{"format": "omlx-cache archive", "version": 2}',
        b'{"format": "omlx-cache archive", "version": 1, "pages": -1}',
        b'{"format": "omlx-cache archive", "version": 1, "pages": 1, "bytes": 1}',
        b'{"format": "omlx-cache archive", "version": 1, "pages": 1, "bytes": 1, '
        b'"namespaces": {"xy": {}}}',
    ],
)
def test_a_manifest_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(ArchiveError):
        decode_manifest(raw)


def test_a_stream_without_end_is_not_taken_into_memory(archive: bytes) -> None:
    """A header announces a large extended header, and the stream gives as much as is asked for."""
    asked: list[int] = []

    class Endless:
        def __init__(self) -> None:
            info = tarfile.TarInfo("x")
            info.type, info.size = b"x", (1 << 33) - 1
            self.head = io.BytesIO(info.tobuf(tarfile.USTAR_FORMAT))

        def read(self, size: int, /) -> bytes:
            asked.append(size)
            return self.head.read(size) or bytes(size)

    with pytest.raises(ArchiveError, match="headers of more than"):
        Archive(Endless())
    assert max(asked) <= READ_BYTES


def test_pages_that_leave_while_it_is_written_are_counted_and_the_archive_is_whole(
    tmp_path: Path, story: Story
) -> None:
    _fill(tmp_path / "from", story)
    found = in_order(scan(tmp_path / "from"))
    to = io.BytesIO()
    writing = pack(found, _manifest(story), to)
    next(writing)
    # One that is interrupted has no end mark.
    with pytest.raises(ArchiveError, match="ends too early"):
        _unpack(to.getvalue(), tmp_path / "cut")
    Path(page_path(tmp_path / "from", story.namespace, found[2].stored.name)).unlink()
    path = Path(page_path(tmp_path / "from", story.namespace, found[3].stored.name))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    *_, done = writing
    assert (done["pages"], done["gone"], done["damaged"]) == (2, 1, 1)
    assert _unpack(to.getvalue(), tmp_path / "to").pages["imported"] == 2


@settings(max_examples=50)
@given(st.text(max_size=30) | st.from_regex(r"[0-9a-f]{64}/[0-9a-f]{2}/.{0,40}"))
@example("".join(_PATH.partition("/")[::2]))
@example(_PATH.replace("/", "//", 1))
@example(_PATH.upper())
@example(f"{_PATH}/")
@example(f"././{_PATH}")
@example(_PATH.replace(f"/{_PATH[65:67]}/", "/zz/"))
def test_a_name_is_parsed_to_what_gives_the_same_name_only(text: str) -> None:
    assert parse_path(f"./{_PATH}").path == _PATH
    try:
        page = parse_path(text)
    except ArchiveError:
        return
    assert page.path == text
