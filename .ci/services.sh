#!/usr/bin/env bash
# Sees to it that the programs of the servers used by the tests are installed; starts none of them.
# Root on Debian or Ubuntu: what is missing is installed. Anybody else is told what to install; the tests that need
# it are skipped then, and fail with CI=true.
set -euo pipefail

has() {
    PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "$1" >/dev/null
}

has_postgres() {
    has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

has_java() {
    # "openjdk version "17.0.1"" and "java version "1.8.0"" alike; macOS has a java that only says how to get one.
    local version
    version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
    [[ -n $version && $version -ge 11 ]]
}

has_datefudge() {
    compgen -G '/usr/lib/*/datefudge/datefudge.so' >/dev/null
}

missing=()
has_postgres || missing+=(postgresql)
has mariadbd || missing+=(mariadb-server)
has redis-server || has valkey-server || missing+=(redis-server)
has_java || missing+=(default-jre-headless)
has mvn || missing+=(maven)
# Shifts the wall clock of a process.
has_datefudge || missing+=(datefudge)

if [[ ${#missing[@]} == 0 ]]; then
    exit 0
fi
if [[ $(id -u) == 0 ]] && has apt-get; then
    exec "$(dirname "$0")/apt.sh" "${missing[@]}"
fi
echo "not installed, so their tests are skipped: ${missing[*]}" \
    "(Debian, Ubuntu: sudo apt-get install ${missing[*]}; Java must be 11 or newer)" >&2
