import os
import subprocess
import sys
from pathlib import Path

from kit.trees import ROOT
from omlx_cache.settings.model import CacheSettings
from omlx_cache.settings.names import SETTING_NAMES

REFERENCE = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


def test_the_reference_is_up_to_date_whatever_the_machine(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "settings_reference.py"
    environment = {**os.environ, "HOME": str(tmp_path), "OMLX_CACHE_HOT_BYTES": "7GiB"}
    command = [sys.executable, str(script), "-"]
    written = subprocess.run(command, capture_output=True, check=True, env=environment, timeout=60)
    assert written.stdout.decode() == REFERENCE, f"run python {script}"


def test_the_static_names_are_the_model_s_fields() -> None:
    assert set(SETTING_NAMES) | {"machine"} == set(CacheSettings.model_fields)
