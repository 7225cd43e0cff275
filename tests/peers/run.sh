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
            PYTHONPATH=".:daemon:storage:tests:$folder${beside:+:$beside}" "$python" "$script"
        fi
    done
}

# shellcheck disable=SC2086
check mlx_vlm $MLX_VLM
# shellcheck disable=SC2086
beside=$(install mlx_vlm $MLX_VLM)
# shellcheck disable=SC2086
check vllm_mlx $VLLM_MLX

. tests/peers/vllm_mlx.sh
own_tests_of_vllm_mlx
