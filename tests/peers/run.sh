#!/usr/bin/env bash
# Runs the checks against other projects' packages: all of them, or those that are named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/install.sh
. tests/peers/mlx_lm.sh
. tests/peers/openai_server.sh
. tests/peers/mlx_vlm.sh
. tests/peers/vllm_mlx.sh

for peer in ${@:-mlx_lm openai_server mlx_vlm vllm_mlx}; do
    SECONDS=0
    "$peer"
    echo "-- $peer took ${SECONDS}s"
done
