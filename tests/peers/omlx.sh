# To be sourced: oMLX's scheduler and engine with this cache. It is on no package index: its source
# is fetched, or is at OMLX_SOURCE, and what cannot be had is said and left out.

OMLX_URL=https://github.com/jundot/omlx
# Its release 0.6.2.
OMLX_COMMIT=f2d36f3d25a7e7a2401a92eecafc28b8f8968ec7

# What its scheduler imports of the 40 packages that it names; the mlx-lm that it pins by a commit
# says 0.31.3 too.
OMLX="mlx==0.32.0 mlx-lm==0.31.3 mlx-vlm==0.6.4 psutil==7.2.2 requests==2.34.2 urllib3==2.8.0 \
    certifi==2026.10.18 charset-normalizer==3.5.2 pillow==13.0.0 fastapi==0.129.2 \
    starlette==1.10.0 python-multipart==0.0.34"

omlx_source() {
    local folder=${PEERS:-.venv/peers}/omlx-$OMLX_COMMIT
    if [ -n "${OMLX_SOURCE:-}" ]; then
        echo "$OMLX_SOURCE"
        return
    fi
    if [ ! -f "$folder/.complete" ]; then
        rm -rf "$folder"
        if ! { git init --quiet "$folder" &&
            GIT_TERMINAL_PROMPT=0 git -C "$folder" -c http.lowSpeedLimit=1000 \
                -c http.lowSpeedTime=60 fetch --quiet --depth 1 "$OMLX_URL" "$OMLX_COMMIT" &&
            git -C "$folder" checkout --quiet FETCH_HEAD; } >&2; then
            rm -rf "$folder"
            return 1
        fi
        touch "$folder/.complete"
    fi
    echo "$folder"
}

omlx() {
    local source folder backend=mlx-cpu
    if ! source=$(omlx_source); then
        echo "SKIPPED omlx: $OMLX_URL at $OMLX_COMMIT cannot be had; set OMLX_SOURCE to a copy." >&2
        return
    fi
    if [ "$(uname)" = Darwin ]; then backend=mlx-metal; fi
    # shellcheck disable=SC2086
    folder=$(install omlx $OMLX "$backend==0.32.0")
    echo "oMLX's source: $source"
    PYTHONPATH=".:daemon:storage:tests:$folder:$source" "$python" tests/peers/check_omlx.py
}
