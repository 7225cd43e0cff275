"""The system's own calls hang for a directory, below Python: a library that is preloaded."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs Linux and a C compiler"
)


class HangingCalls:
    """In processes with `environment`, calls for paths that have `name` in them hang from `hang`
    on. `directory` has the library and a flag."""

    def __init__(self, directory: Path, name: str) -> None:
        library, source = directory / "hanging.so", Path(__file__).with_name("hanging.c")
        options = ["-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"]
        subprocess.run([COMPILER, *options], check=True)
        self._flag = directory / "flag"
        self.environment = {
            "LD_PRELOAD": str(library),
            "HANG_FLAG": str(self._flag),
            "HANG_IN": name,
        }

    def hang(self, call: str = "everything") -> None:
        self._flag.write_text(call)
