# To be sourced in the repository's root: `install NAME PACKAGE...` puts packages into a folder of
# their own inside .venv, once, and says where. Without what they depend on and we have already:
# mlx-vlm with all of it is 1 GB, so 63 MB.
python=${PYTHON:-.venv/bin/python}
MLX_VLM="mlx-vlm==0.7.10 requests==2.34.2 urllib3==2.8.0 certifi==2026.10.18 \
    charset-normalizer==3.5.2 pillow==13.0.0"
# What its text models need: outlines, for JSON schemas, would bring torch.
MLX_OPENAI_SERVER="mlx-openai-server==1.8.1 mlx-lm==0.31.3 loguru==0.7.3 dill==0.4.1 click==8.3.3 \
    fastapi==0.129.2 starlette==0.50.0 annotated-doc==0.0.7 uvicorn==0.39.0 h11==0.16.0 \
    python-multipart==0.0.34 json-repair==0.64.5 openai-harmony==0.0.8 aiofiles==25.1.0 \
    pillow==12.1.1"

install() {
    local folder=${PEERS:-.venv/peers}/$1
    shift
    if [ ! -f "$folder/.complete" ]; then
        rm -rf "$folder"
        "$python" -m pip --disable-pip-version-check install --quiet --only-binary :all: \
            --no-deps --ignore-requires-python --target "$folder" "$@" >&2 || return 1
        touch "$folder/.complete"
    fi
    echo "$folder"
}
