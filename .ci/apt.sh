#!/usr/bin/env bash
# Installs Debian packages as root, without starting the services that they bring.
set -euo pipefail

echo "installing: $*"
export DEBIAN_FRONTEND=noninteractive

# Debian asks this program before it starts a service; 101 means no. One that is already there is left alone.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi

quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        rm -f "$log"
        echo "$1 ${2:-} failed: its last lines are above" >&2
        return 1
    fi
    rm -f "$log"
}

quietly apt-get update
quietly apt-get install --yes --no-install-recommends "$@"
