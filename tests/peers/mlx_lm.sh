# To be sourced: the versions of mlx-lm that are not the locked one, and its own tests.
OLDEST_MLX_LM=0.31.3
# What its tests of the server ask with.
REQUESTS="requests==2.34.2 urllib3==2.8.0 certifi==2026.10.18 charset-normalizer==3.5.2"

# A part of our tests, for what differs between the versions: classes, batches, servers.
DIFFERS="tests/kv/test_options.py tests/integrations/test_generate.py \
    tests/integrations/test_prompt_cache.py tests/integrations/test_versions.py \
    tests/integrations/server/test_equals_upstream.py::test_a_chat_of_several_turns"
DIFFERS_TOO="tests/adapters tests/kv/test_batch_generator.py tests/store/test_operations.py \
    tests/store/test_without_mlx_lm.py tests/integrations/test_batch.py \
    tests/integrations/test_packed_inserts.py tests/integrations/test_rows.py \
    tests/integrations/server/test_bad_requests.py \
    tests/integrations/server/test_equals_upstream.py::test_a_draft_model_restores_both_caches"

ours_with_the_oldest() {
    local folder
    folder=$(install "mlx_lm-$OLDEST_MLX_LM" "mlx-lm==$OLDEST_MLX_LM")
    echo "our tests with mlx-lm $OLDEST_MLX_LM:"
    # shellcheck disable=SC2086
    PYTHONPATH="$folder:.:daemon:storage" "$python" -m pytest -q -p no:cacheprovider \
        -n 2 --dist loadfile $DIFFERS ${ALL:+$DIFFERS_TOO}
}

# mlx-lm's tests of its server, with our prompt cache.
theirs_with_our_cache() {
    local sources folder version
    version=$("$python" -c 'import importlib.metadata as m; print(m.version("mlx-lm"))')
    # shellcheck disable=SC2086
    folder=$(install requests $REQUESTS)
    if ! sources=$(sdist "mlx-lm==$version") || [ ! -f "$sources/tests/test_server.py" ]; then
        echo "mlx-lm $version has no tests on PyPI: they are left out." >&2
        return
    fi
    # Models of this machine's user are nothing to the tests.
    HF_HUB_OFFLINE=1 HF_HUB_CACHE="$folder/no-hub" \
        PYTHONPATH=".:daemon:storage:tests:$folder" "$python" \
        tests/peers/check_mlx_lm_server.py "$sources/tests/test_server.py"
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
    [ -z "$ALL" ] || theirs_with_our_cache
}
