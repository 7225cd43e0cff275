#!/usr/bin/env bash
# Sets the cache beside mlx-lm's and mlx-vlm's; a peer that cannot be installed has rows that say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/install.sh
. tests/peers/mlx_vlm.sh

# shellcheck disable=SC2086
folder=$(install mlx_vlm $MLX_VLM) || echo "mlx-vlm cannot be installed: it is left out." >&2
PYTHONPATH=".:daemon:storage" "$python" -m benchmarks.side_by_side \
    ${folder:+--mlx-vlm "$folder"} "$@"
