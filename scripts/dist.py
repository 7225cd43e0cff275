#!/usr/bin/env python3
"""Builds wheel and sdist into dist/, and tries the wheel where nothing else is.

    scripts/dist.py

The wheel is built from the unpacked sdist, so that the sdist is known to have all that a build
needs. It is installed as users install it, with the newest versions that its ranges admit, into an
environment in a temporary folder; `pip check` and the demo run there.
"""

import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from zopfli.zlib import compress

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
WHEEL_BYTES = 800_000
"""What a wheel may take at most. A statement costs 30 bytes, a module 540."""


def build(work: Path) -> Path:
    """Fill dist/ with an sdist and the wheel that it gives; return the wheel."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(DIST)]
    subprocess.run([*hatchling, "-t", "sdist"], cwd=ROOT, check=True)
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (unpacked,) = work.iterdir()
    subprocess.run([*hatchling, "-t", "wheel"], cwd=unpacked, check=True)
    (wheel,) = DIST.glob("*.whl")
    squeeze(wheel)
    return wheel


def squeeze(wheel: Path) -> None:
    """Compress a wheel's files anew: the same contents, and any unzip reads them.

    Zopfli finds a shorter form than zlib's best level, by three in a hundred. It writes streams;
    `zipfile` takes none that are compressed already, so the archive around them is written here.
    """
    with ZipFile(wheel) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist()]
    body, directory = b"", b""
    for info, data in files:
        # Without zlib's own header and checksum.
        stream = compress(data)[2:-4]
        name = info.filename.encode()
        year, month, day, hour, minute, second = info.date_time
        common = struct.pack(
            "<5H3L2H",
            *(20, 0, ZIP_DEFLATED),
            hour << 11 | minute << 5 | second // 2,
            (year - 1980) << 9 | month << 5 | day,
            *(info.CRC, len(stream), len(data), len(name), 0),
        )
        made_by = struct.pack("<4s2B", b"PK\1\2", 20, info.create_system)
        place = struct.pack("<3H2L", 0, 0, 0, info.external_attr, len(body))
        directory += made_by + common + place + name
        body += b"PK\3\4" + common + name + stream
    counts = (0, 0, len(files), len(files), len(directory), len(body), 0)
    wheel.write_bytes(body + directory + struct.pack("<4s4H2LH", b"PK\5\6", *counts))
    with ZipFile(wheel) as archive:
        assert [(info.filename, archive.read(info)) for info in archive.infolist()] == [
            (info.filename, data) for info, data in files
        ]


def try_out(wheel: Path, environment: Path) -> None:
    """Install a wheel and run it; raises CalledProcessError where something fails."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    # Away from the checkout, which has packages of the same names.
    for command in (
        [*pip, "install", "--quiet", str(wheel)],
        [*pip, "check"],
        [str(environment / "bin" / "omlx-cached"), "--help"],
        [str(environment / "bin" / "omlx-cache"), "demo"],
    ):
        subprocess.run(command, cwd=environment, check=True)


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    # Paths that a shell has for its own work would be those of the checkout.
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="omlx-cache-dist-") as work:
        unpacked, environment = Path(work, "sdist"), Path(work, "environment")
        unpacked.mkdir()
        wheel = build(unpacked)
        try_out(wheel, environment)
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>9,} bytes  {path.relative_to(ROOT)}")
    if wheel.stat().st_size > WHEEL_BYTES:
        print(f"the wheel may have {WHEEL_BYTES:,} bytes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
