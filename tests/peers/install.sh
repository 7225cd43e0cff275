# To be sourced in the repository's root: `install NAME PACKAGE...` puts packages into a folder of
# their own inside .venv, once, and says where. Without what they depend on and we have already:
# mlx-vlm with all of it is 1 GB, so 63 MB.
python=${PYTHON:-.venv/bin/python}
MLX_VLM="mlx-vlm==0.7.10 requests==2.34.2 urllib3==2.8.0 certifi==2026.10.18 \
    charset-normalizer==3.5.2 pillow==13.0.0"
# Its schedulers and engine need this much of the 40 packages that it names.
VLLM_MLX="vllm-mlx==0.6.0 mlx-lm==0.31.3 psutil==7.2.2 jsonschema==4.26.0 attrs==26.1.0 \
    referencing==0.37.0 rpds-py==2026.9.1 jsonschema-specifications==2025.9.1"

install() {
    local folder=${PEERS:-.venv/peers}/$1
    shift
    if [ ! -f "$folder/.complete" ]; then
        rm -rf "$folder"
        "$python" -m pip --disable-pip-version-check install --quiet --only-binary :all: \
            --no-deps --target "$folder" "$@" >&2 || return 1
        touch "$folder/.complete"
    fi
    echo "$folder"
}

# `sdist PACKAGE==VERSION` unpacks a source distribution there, once, and says where.
sdist() {
    local folder=${PEERS:-.venv/peers}/sdist-$1
    if [ ! -f "$folder/.complete" ]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        "$python" -m pip --disable-pip-version-check download --quiet --no-binary :all: \
            --no-deps --dest "$folder" "$1" >&2 || return 1
        tar -xzf "$folder"/*.tar.gz --strip-components 1 -C "$folder" || return 1
        touch "$folder/.complete"
    fi
    echo "$folder"
}
