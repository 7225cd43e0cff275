# To be sourced by run.sh: vllm-mlx's own tests of what its schedulers do with a cache, with this one
# in each of them. Two do not apply: they set a field of its own cache, and want a repeated
# prompt not to be found.
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
