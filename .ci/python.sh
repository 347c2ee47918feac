#!/usr/bin/env bash
# Makes the virtual environment $1 from the first Python >= 3.11 found, with a pip that knows dependency groups.
# An environment that works is kept.
set -euo pipefail

venv=$1
recent='import sys; sys.exit(sys.version_info < (3, 11))'

stop() {
    echo "$*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3 python3.14; do
        if "$candidate" -c "$recent" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

make_venv() {
    local python
    python=$(find_python) ||
        stop "Python >= 3.11 is needed and $(python3 --version 2>/dev/null || echo 'no python3') was found:" \
            "install one from python.org or your system's packages, or name it: make PYTHON=/path/to/python3"
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        [[ $(id -u) == 0 && -x "$(command -v apt-get)" ]] ||
            stop "$python has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)"
        "$(dirname "$0")/apt.sh" "$(basename "$(readlink -f "$python")")-venv"
    fi
    "$python" -m venv --clear "$venv"
}

"$venv/bin/python" -c "$recent" 2>/dev/null || make_venv
"$venv/bin/python" -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (25, 1))' 2>/dev/null ||
    "$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
