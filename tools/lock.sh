#!/bin/sh
# Writes requirements/*.txt from requirements/*.in: exact versions with hashes for every Python from 3.10 on, and no index address.
set -eu
cd "$(dirname "$0")/../requirements"

lock() {
    name=$1
    shift
    ../.venv/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-binary llama-cpp-python \
        "$name.in" "$@"
}

lock build -o build.txt
lock image-build -o image-build.txt
lock container -o container.txt
lock dev -c container.txt -o dev.txt
lock cdk -c dev.txt -o cdk.txt
lock ops -c dev.txt -o ops.txt
lock emulator -o emulator.txt
lock archives --no-deps -o archives.txt
lock model-build -o ../stacks/model_build/requirements.txt # beside the script that it is for
lock model-parity -o ../stacks/model_build/parity.txt
