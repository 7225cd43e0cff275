#!/usr/bin/env bash
# Runs each check_*.py here against the package that it names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/install.sh

check() {
    local name=$1 folder
    shift
    folder=$(install "$name" "$@")
    for script in tests/peers/check_*.py; do
        if grep -q "^from ${name}\b\|^from ${name}\." "$script"; then
            PYTHONPATH=".:daemon:storage:$folder" "$python" "$script"
        fi
    done
}

# shellcheck disable=SC2086
check mlx_vlm $MLX_VLM

. tests/peers/mlx_lm.sh
theirs_with_our_cache
ours_with_the_oldest
