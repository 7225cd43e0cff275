import os
import subprocess
import sys
from pathlib import Path

import omlx_cache.settings.docs as docs
from omlx_cache.settings.model import CacheSettings
from omlx_cache.settings.names import SETTING_NAMES

_ROOT = Path(__file__).parents[2]


def test_the_configuration_reference_is_up_to_date() -> None:
    written = (_ROOT / docs.DEFAULT_PATH).read_text(encoding="utf-8")
    assert written == docs.reference(), "run python -m omlx_cache.settings.docs"


def test_the_reference_does_not_depend_on_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "configuration.md"
    environment = {**os.environ, "HOME": str(tmp_path), "OMLX_CACHE_HOT_BYTES": "7GiB"}
    subprocess.run(
        [sys.executable, "-m", "omlx_cache.settings.docs", str(path)],
        check=True,
        cwd=_ROOT,
        env=environment,
        timeout=60,
    )
    assert path.read_text(encoding="utf-8") == docs.reference()


def test_the_static_names_are_the_model_s_fields() -> None:
    assert set(SETTING_NAMES) | {"machine"} == set(CacheSettings.model_fields)


def test_every_setting_is_described() -> None:
    for name in SETTING_NAMES:
        assert len(CacheSettings.model_fields[name].description or "") > 20, name
        assert f"OMLX_CACHE_{name.upper()}" in docs.reference()
