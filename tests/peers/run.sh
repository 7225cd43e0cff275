#!/usr/bin/env bash
# Runs each check_*.py here against the package that it names. The packages go into folders of
# their own inside .venv, without what they depend on and we have already: mlx-vlm with all of it
# is 1 GB, so 63 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-.venv/bin/python}

check() {
    local name=$1 folder
    shift
    folder="${PEERS:-.venv/peers}/$name"
    if [ ! -f "$folder/.complete" ]; then
        rm -rf "$folder"
        "$python" -m pip --disable-pip-version-check install --quiet --only-binary :all: \
            --no-deps --target "$folder" "$@"
        touch "$folder/.complete"
    fi
    for script in tests/peers/check_*.py; do
        if grep -q "^from ${name}\b\|^from ${name}\." "$script"; then
            PYTHONPATH=".:daemon:storage:$folder" "$python" "$script"
        fi
    done
}

check mlx_vlm mlx-vlm==0.7.10 requests==2.34.2 urllib3==2.8.0 certifi==2026.10.18 \
    charset-normalizer==3.5.2 pillow==13.0.0
