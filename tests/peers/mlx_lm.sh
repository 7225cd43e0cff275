# To be sourced: mlx-lm's own command, and versions of it that are not the locked one.
OLDEST_MLX_LM=0.31.3
# A part of our tests, for what differs between the versions: classes, batches, servers.
DIFFERS="tests/kv/test_options.py tests/integrations/test_generate.py \
    tests/integrations/test_prompt_cache.py tests/integrations/test_versions.py \
    tests/integrations/server/test_equals_upstream.py::test_a_chat_of_several_turns"
DIFFERS_TOO="tests/adapters tests/kv/test_batch_generator.py tests/store/test_operations.py \
    tests/store/test_without_mlx_lm.py tests/integrations/test_batch.py \
    tests/integrations/test_packed_inserts.py tests/integrations/test_rows.py \
    tests/integrations/server/test_equals_upstream.py::test_a_draft_model_restores_both_caches"

ours_with_the_oldest() {
    local folder
    folder=$(install "mlx_lm-$OLDEST_MLX_LM" "mlx-lm==$OLDEST_MLX_LM")
    echo "our tests with mlx-lm $OLDEST_MLX_LM:"
    # shellcheck disable=SC2086
    PYTHONPATH="$folder:.:daemon:storage" "$python" -m pytest -q -p no:cacheprovider \
        -n 2 --dist loadfile $DIFFERS ${ALL:+$DIFFERS_TOO}
}

# Our tests with what will be mlx-lm's next version, which nothing here was tested with.
ours_with_main() {
    local folder=${PEERS:-.venv/peers}/mlx_lm-main
    rm -rf "$folder"
    "$python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$folder" \
        "git+https://github.com/ml-explore/mlx-lm@main" >&2
    echo "our tests with mlx-lm's main branch:"
    # shellcheck disable=SC2086
    PYTHONPATH="$folder:.:daemon:storage" "$python" -m pytest -q -p no:cacheprovider \
        -n 2 --dist loadfile $DIFFERS $DIFFERS_TOO
}

mlx_lm() {
    if [ -n "$NEWEST" ]; then
        ours_with_main
        return
    fi
    ours_with_the_oldest
    [ -z "$ALL" ] || PYTHONPATH=".:daemon:storage:tests" \
        "$python" tests/peers/check_servers.py mlx_lm.server
}
