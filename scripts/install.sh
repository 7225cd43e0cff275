#!/bin/sh
# Puts `omlx-cache` and `omlx-cached` on the PATH, and removes them again.
#
#     scripts/install.sh install | uninstall
#
# uv or pipx does it where there is one; else an environment in the user's data directory, with
# links in ~/.local/bin. Versions are those of requirements-dev.lock. EXTRAS names extras, as in
# `EXTRAS=remote,zstd`; PYTHON the interpreters to try; FORCE=1 uninstalls while servers run.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
place=${XDG_DATA_HOME:-$HOME/.local/share}/omlx-cache
venv=$place/venv
links=$HOME/.local/bin
commands="omlx-cache omlx-cached"

has() { command -v "$1" >/dev/null 2>&1; }

quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }

# Each of the ways by which it is installed, one a line.
ways() {
    if has uv && uv tool list 2>/dev/null | grep -q '^omlx-cache '; then echo uv; fi
    if has pipx && pipx list --short 2>/dev/null | grep -q '^omlx-cache '; then echo pipx; fi
    if [ -d "$venv" ]; then echo venv; fi
}

is_ours() { [ "$(readlink "$1" 2>/dev/null)" = "$venv/bin/${1##*/}" ]; }

with_venv() {
    for name in $commands; do
        if [ -e "$links/$name" ] && ! is_ours "$links/$name"; then
            echo "$links/$name is there and not of \`make install\`: remove it first." >&2
            exit 1
        fi
    done
    "$python" -m venv --clear "$venv"
    set -- "$venv/bin/python" -m pip --disable-pip-version-check install --quiet
    "$@" --only-binary :all: --require-hashes -r "$root/requirements.lock"
    "$@" --no-build-isolation --constraint "$constraints" "$wanted"
    mkdir -p "$links"
    for name in $commands; do ln -sf "$venv/bin/$name" "$links/$name"; done
}

# Servers for `omlx-cache run` in the environment, one a line.
servers() {
    for name in mlx-openai-server mlx_vlm.server vllm-mlx; do
        if [ -e "$place/bin/$name" ]; then echo "$name"; fi
    done
}

install() {
    way=$(ways | head -n 1)
    if [ -z "$way" ]; then
        way=venv
        if has pipx; then way=pipx; fi
        if has uv; then way=uv; fi
    fi
    # shellcheck disable=SC2086
    if ! python=$(sh "$root/scripts/find_python.sh" ${PYTHON:-python3} 2>&1); then
        if [ $way != uv ]; then
            echo "$python" >&2
            exit 1
        fi
        # uv brings a Python of its own.
        python=3.13
    fi
    constraints=$(mktemp)
    trap 'rm -f "$constraints"' EXIT
    # A constraint has no hashes: a checkout, which has none, could not be installed beside it.
    sed -n 's/^\([a-z].*==.*\) \\$/\1/p' "$root/requirements-dev.lock" >"$constraints"
    wanted=$root${EXTRAS:+[$EXTRAS]}
    echo "Installing omlx-cache with $way: a minute or two"
    case $way in
    uv) bin=$(uv tool dir --bin) place=$(uv tool dir)/omlx-cache ;;
    pipx)
        bin=$(pipx environment --value PIPX_BIN_DIR)
        place=$(pipx environment --value PIPX_LOCAL_VENVS)/omlx-cache
        ;;
    venv) bin=$links place=$venv ;;
    esac
    had=$(servers)
    case $way in
    uv)
        uv tool install --quiet --reinstall-package omlx-cache \
            --python "$python" --constraints "$constraints" "$wanted"
        ;;
    pipx)
        pipx install --quiet --force --python "$python" \
            --pip-args "--constraint $constraints" "$wanted"
        ;;
    venv) with_venv ;;
    esac
    echo "Installed $("$bin/omlx-cache" --version) in $place; its commands are in $bin."
    for name in $(echo "$had" | grep -vxF "$(servers)"); do
        echo "That environment is new, without $name: \`omlx-cache run $name\` says how to add it."
    done
    if [ -n "$("$bin/omlx-cache" ps 2>/dev/null)" ]; then
        echo "Servers that run keep the old code until you restart them."
    fi
    first=$(command -v omlx-cache || true)
    if [ -z "$first" ]; then
        echo "$bin is not on your PATH. Put this line into ~/.zshrc, ~/.bashrc or what your shell"
        echo "reads at its start, and open a new terminal:"
        echo "    export PATH=\"$bin:\$PATH\""
    elif [ "$first" != "$bin/omlx-cache" ]; then
        echo "Another one is found before it on your PATH: $first"
    fi
}

uninstall() {
    removed=
    running=$(PATH="$venv/bin:$links:$PATH" omlx-cache ps 2>/dev/null || true)
    if [ -n "$running" ]; then
        echo "These servers run:"
        echo "$running"
        if [ -z "${FORCE:-}" ]; then
            echo "Stop them first: nothing was removed. FORCE=1 removes omlx-cache all the same;" >&2
            echo "they go on until they are stopped, or need a file that is gone." >&2
            exit 1
        fi
    fi
    for way in $(ways); do
        case $way in
        uv) uv tool uninstall --quiet omlx-cache ;;
        pipx) pipx uninstall --quiet omlx-cache ;;
        venv)
            for name in $commands; do
                if is_ours "$links/$name"; then rm -f "$links/$name"; fi
            done
            rm -rf "$venv"
            rmdir "$place" 2>/dev/null || true
            ;;
        esac
        echo "Removed omlx-cache, installed with $way."
        removed=yes
    done
    if [ -z "$removed" ]; then echo "omlx-cache is not installed: nothing was removed."; fi
    left=$(leftovers)
    if [ -z "$left" ]; then
        echo "Nothing else of it lies in its usual places."
    else
        echo "What it kept stays. Each line deletes what it names:"
        echo "$left"
    fi
    echo "Models stay in huggingface_hub's cache: other programs use them, too."
}

# Prints a command for each thing of this user's that exists, with what it is.
leftovers() {
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/omlx-cache
    config=${XDG_CONFIG_HOME:-$HOME/.config}/omlx-cache
    state=${XDG_STATE_HOME:-$HOME/.local/state}/omlx-cache
    file=$config/omlx-cached.toml
    kept="what stores remember of directories"
    sockets="sockets of stores, also of other installations"
    systemd=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user
    if [ "$(uname)" = Darwin ]; then
        cache=$HOME/Library/Caches/omlx-cache
        state="$HOME/Library/Application Support/omlx-cache"
        file=$state/omlx-cached.toml
        kept="configuration, and $kept"
    fi
    for name in omlx-cached omlx-cache-serve; do
        line "$systemd/$name.service" "a unit that starts it" \
            "systemctl --user disable --now $name; rm"
        line "$HOME/Library/LaunchAgents/$name.plist" "an agent that starts it" \
            "launchctl bootout gui/$(id -u)/$name; rm"
        line "$HOME/Library/Logs/$name.log" "a log" rm
    done
    line "$cache" "cached pages" "rm -rf"
    for other in "${OMLX_CACHE_COLD_DIR:-}" "$(chosen "$file")"; do
        if [ "$other" != "$cache" ]; then
            line "$other" "cached pages, if you put nothing else there" "rm -rf"
        fi
    done
    line "$config" "configuration, tokens and secrets" "rm -rf"
    line "$state" "$kept" "rm -rf"
    # Named by a person, it may be a home directory: only an empty one is deleted.
    line "${OMLX_CACHE_RUNTIME_DIR:-}" "where stores had their sockets" rmdir
    line "${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/omlx-cache" "$sockets" "rm -rf"
    # Elsewhere than on macOS no store listens there, and a checkout may have the name.
    if [ "$(uname)" = Darwin ] && [ -n "${TMPDIR:-}" ]; then
        line "${TMPDIR%/}/omlx-cache" "$sockets" "rm -rf"
    fi
    line "/tmp/omlx-cache-$(id -u)" "$sockets" "rm -rf"
    line "${OMLX_CACHE_TRACE:-}" "a trace of requests" rm
    line "${XDG_CONFIG_HOME:-$HOME/.config}/fish/completions/omlx-cache.fish" "completions" rm
    line "$root/.venv" "what make set up in this checkout" "rm -rf"
    for name in .zshrc .zshenv .zprofile .bashrc .bash_profile .profile .config/fish/config.fish; do
        start=$HOME/$name
        if grep -qi 'omlx.cache' "$start" 2>/dev/null; then
            echo "    (edit $start, which names omlx-cache)"
        fi
    done
}

# PATH WHAT COMMAND
line() {
    if [ -n "$1" ] && [ -e "$1" ]; then echo "    $3 $(quoted "$1")    # $2"; fi
}

# The directory that a configuration file names.
chosen() {
    sed -n 's/^ *cold_dir *= *"\(.*\)".*/\1/p' "$1" 2>/dev/null | sed "s|^~/|$HOME/|"
}

case ${1:-} in
install | uninstall) "$1" ;;
*)
    echo "usage: scripts/install.sh install | uninstall" >&2
    exit 2
    ;;
esac
