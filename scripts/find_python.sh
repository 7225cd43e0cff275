#!/bin/sh
# Prints the path of the first interpreter, of those named, that can make an environment for the
# locked packages; with none it says what to install, and exits with 1.
#
#     scripts/find_python.sh python3 python3.13
usable='import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
for candidate in "$@"; do
    if "$candidate" -c "$usable" 2>/dev/null; then
        command -v "$candidate"
        exit
    fi
done
cat >&2 <<EOF
Python 3.11 to 3.14 with its venv module is needed; tried: $*.
Install one (Debian and Ubuntu: python3 and python3-venv; macOS: brew install python@3.13),
or name one: PYTHON=/path/to/python3.13 behind the command.
EOF
exit 1
