#!/usr/bin/env bash
# Runs checks against other projects' packages: the first one of each peer, or of those peers that
# are named. With `--all`, which comes first, every check: those of the nightly run. With `--newest`
# in its place every check against the newest releases and mlx-lm's main branch, which nobody has
# tested.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ALL=
case ${1:-} in
--all) ALL=yes ;;
--newest) ALL=yes NEWEST=yes ;;
*) set -- "" "$@" ;;
esac
shift
. tests/peers/install.sh
. tests/peers/mlx_lm.sh
. tests/peers/openai_server.sh
. tests/peers/mlx_vlm.sh
. tests/peers/vllm_mlx.sh
. tests/peers/omlx.sh

in_turn() {
    local peer
    for peer in "$@"; do
        SECONDS=0
        "$peer"
        echo "-- $peer took ${SECONDS}s"
    done
}

if [ $# -gt 0 ]; then
    in_turn "$@"
    exit
fi

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
echo "Two at a time; what they say comes when they have ended."
in_turn mlx_lm openai_server > "$logs/first" 2>&1 &
first=$!
in_turn mlx_vlm vllm_mlx > "$logs/second" 2>&1 &
second=$!
failed=0
wait $first || failed=1
cat "$logs/first"
wait $second || failed=1
cat "$logs/second"
exit $failed
