#!/bin/sh
# Writes requirements/*.txt from requirements/*.in: exact versions with hashes for every Python from 3.10 on, and no index address.
set -eu
cd "$(dirname "$0")/../requirements"

lock() {
    name=$1
    shift
    ../.venv/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-binary llama-cpp-python \
        "$@" "$name.in" -o "$name.txt"
}

lock build
lock container
lock dev -c container.txt
lock emulator
lock archives --no-deps
