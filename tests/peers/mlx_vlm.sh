# To be sourced: mlx-vlm's caches, its generator and its server with this cache, and with its own.

MLX_VLM="mlx-vlm==0.7.10 requests==2.34.2 urllib3==2.8.0 certifi==2026.10.18 \
    charset-normalizer==3.5.2 pillow==13.0.0 fastapi==0.129.2 starlette==1.10.0 uvicorn==0.54.0 \
    mlx-audio==0.6.2 miniaudio==1.71 python-multipart==0.0.34 websockets==17.4 \
    cryptography==50.0.2 cffi==2.1.1 pycparser==3.12"
MORE_OF_MLX_VLM="check_mlx_vlm check_mlx_vlm_caches check_mlx_vlm_server"

mlx_vlm() {
    local folder script
    # shellcheck disable=SC2086
    folder=$(install mlx_vlm $MLX_VLM)
    # shellcheck disable=SC2086
    for script in check_mlx_vlm_apc ${ALL:+$MORE_OF_MLX_VLM}; do
        PYTHONPATH=".:daemon:storage:tests:$folder" "$python" "tests/peers/$script.py"
    done
    [ -z "$ALL" ] || PYTHONPATH=".:daemon:storage:tests:$folder" \
        "$python" tests/peers/check_servers.py mlx_vlm.server
}
