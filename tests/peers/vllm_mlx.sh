# To be sourced: vllm-mlx with this cache, and with its own.

# Its schedulers and engine need this much of the 40 packages that it names.
VLLM_MLX="vllm-mlx==0.6.0 mlx-lm==0.31.3 psutil==7.2.2 jsonschema==4.26.0 attrs==26.1.0 \
    referencing==0.37.0 rpds-py==2026.9.1 jsonschema-specifications==2025.9.1"

# Its own tests of what its schedulers do with a cache, with this one in each of them. Two do not
# apply: they set a field of its own cache, and want a repeated prompt not to be found.
OWN_TESTS="test_scheduler_max_kv_size test_prefix_cache_untrimmable test_batching \
    test_scheduler_prompt_save_failclosed test_continuous_batching test_memory_stability \
    test_engine_core_request_owner"

own_tests_of_vllm_mlx() {
    local source folder name files=()
    # shellcheck disable=SC2086
    folder=$(install vllm_mlx $VLLM_MLX)
    if ! source=$(sdist vllm-mlx==0.6.0); then
        echo "vllm-mlx's tests cannot be had: they are left out." >&2
        return
    fi
    for name in $OWN_TESTS; do files+=("$source/tests/$name.py"); done
    HF_HUB_OFFLINE=1 PYTHONPATH="$PWD:$PWD/daemon:$PWD/storage:$PWD/tests/peers:$folder" \
        "$python" -m pytest -q -p placed_vllm_mlx -p no:cacheprovider -W ignore -c /dev/null \
        --rootdir "$source" "${files[@]}"
}

vllm_mlx() {
    local folder beside script
    # shellcheck disable=SC2086
    folder=$(install vllm_mlx $VLLM_MLX)
    # shellcheck disable=SC2086
    beside=$(install mlx_vlm $MLX_VLM)
    for script in check_vllm_mlx ${ALL:+check_vllm_mlx_images}; do
        PYTHONPATH=".:daemon:storage:tests:$folder:$beside" "$python" "tests/peers/$script.py"
    done
    [ -n "$ALL" ] || return 0
    PYTHONPATH=".:daemon:storage:tests:$folder:$beside" \
        "$python" tests/peers/check_servers.py vllm-mlx
    [ -n "$NEWEST" ] || own_tests_of_vllm_mlx
}
