"""Writes the golden data with an older version's code; not run by any test.

    git worktree add /tmp/old 7f87c96
    PYTHONPATH=tests:DIRECTORY_WITH_ZSTANDARD python -m golden.write /tmp/old

The processes that write run the code in that folder; `zstandard` must be importable there.
"""

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from contract.driving import Child, environment
from golden.cases import CASES, COMMIT, DATA, LATER, PLAIN, lookup, settings
from golden.ledger import parse


def main() -> None:
    old = Path(sys.argv[1]).resolve()
    home = Path(tempfile.mkdtemp())
    directory = home / "cold"
    env = environment(old, OMLX_CACHE_RUNTIME_DIR=str(home / "run"))
    first = json.dumps(settings(directory))
    child = Child(["-m", "golden.process", first], env=env, log=home / "log")
    assert child.hear() == {"ready": True}
    assert Path(child.ask({"do": "where"})["file"]).is_relative_to(old)
    expected: dict[str, Any] = {"commit": COMMIT, "cases": {}}
    for name, (given, case) in CASES.items():
        child.ask({"do": "reopen", "settings": settings(directory, **given)})
        child.ask(case)
        told = child.ask({**case, "commit": False})
        assert told["flushed"]
        assert not told.get("wrong")
        found = child.ask(lookup(case))
        expected["cases"][name] = {"pages": found["pages"], **told}
    child.ask({"do": "reopen", "settings": settings(directory, **PLAIN)})
    assert child.end() == 0
    command(env, "quota", "7MiB", "--cold-dir", str(directory))
    command(env, "quota", "--pin", "tenant", "--as", "salt", "--cold-dir", str(directory))
    expected["files"] = {
        str(path.relative_to(directory)): path.stat().st_mtime_ns
        for path in sorted(directory.rglob("*.safetensors"))
    }
    pack(directory, DATA / "directory.tar.gz")

    child = Child(["-m", "golden.process", first], env=env, log=home / "log")
    assert child.hear() == {"ready": True}
    ledger, before = directory / "ledger", set(directory.rglob("*"))
    heads = [parse(ledger.read_bytes()).head]
    child.ask(LATER)
    heads.append(parse(ledger.read_bytes()).head)
    kept = home / "later"
    for path in sorted(set(directory.rglob("*")) - before):
        if path.is_file():
            target = kept / path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    pack(kept, DATA / "later.tar.gz")
    child.ask({"do": "clear", "salt": LATER["salt"]})
    data = ledger.read_bytes()
    after = [record.hex() for record in parse(data, heads[1]).records]
    both = [record.hex() for record in parse(data, heads[0]).records]
    expected["added"], expected["removed"] = both[: len(both) - len(after)], after
    assert child.end() == 0
    (DATA / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    shutil.rmtree(home)


def command(env: dict[str, str], *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "omlx_cache_daemon", *arguments], env=env, check=True)


def pack(directory: Path, file: Path) -> None:
    """Write a directory, with its times and nobody's name, as one archive."""

    def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            archive.add(path, str(path.relative_to(directory)), recursive=False, filter=nobodys)
    file.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    main()
