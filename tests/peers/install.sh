# To be sourced in the repository's root: `install NAME PACKAGE...` puts packages into a folder of
# their own inside .venv, once, and says where. Without what they depend on and we have already, and
# without what only other paths of theirs need: a server with all of it is 1 to 6 GB.
# With NEWEST the first package has its newest release; the others are those that were tested.
python=${PYTHON:-.venv/bin/python}
NEWEST=${NEWEST:-}
install() {
    local folder=${PEERS:-.venv/peers}/$1
    shift
    if [ -n "$NEWEST" ]; then
        folder=$folder-newest
        set -- "${1%%==*}" "${@:2}"
        rm -rf "$folder"
    fi
    if [ "$(cat "$folder/.complete" 2>/dev/null)" != "$*" ]; then
        rm -rf "$folder"
        "$python" -m pip --disable-pip-version-check install --quiet --no-compile --only-binary \
            :all: --no-deps --ignore-requires-python --target "$folder" "$@" >&2 || return 1
        echo "$*" > "$folder/.complete"
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
