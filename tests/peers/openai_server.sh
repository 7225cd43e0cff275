# To be sourced: mlx-openai-server with this cache, and with its own.

# What its text models need: outlines, for JSON schemas, would bring torch.
MLX_OPENAI_SERVER="mlx-openai-server==1.8.1 mlx-lm==0.31.3 loguru==0.7.3 dill==0.4.1 click==8.3.3 \
    fastapi==0.129.2 starlette==0.50.0 annotated-doc==0.0.7 uvicorn==0.39.0 h11==0.16.0 \
    python-multipart==0.0.34 json-repair==0.64.5 openai-harmony==0.0.8 aiofiles==25.1.0 \
    pillow==12.1.1"

openai_server() {
    local folder check
    # shellcheck disable=SC2086
    folder=$(install mlx_openai_server $MLX_OPENAI_SERVER)
    for check in check_openai_server.py ${ALL:+"check_servers.py mlx-openai-server"}; do
        # shellcheck disable=SC2086
        PYTHONPATH=".:daemon:storage:tests:tests/peers/stand_ins:$folder" "$python" \
            tests/peers/$check
    done
}
