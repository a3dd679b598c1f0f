#!/bin/sh
# Writes requirements/{build,runtime,kubernetes,nccl,dev,ansible}.txt: every version that development, the packages and
# the container install, with hashes.
# Usage: packaging/lock.sh [--upgrade]. Run by `make lock`, after a dependency in pyproject.toml has changed.
# Resolved with the oldest Python that healthd runs on; the files serve newer ones too.
set -eu
cd "$(dirname "$0")/.."

python=$(sh packaging/venv.sh python)
tools=build/lock
"$python" -m venv --clear "$tools"
"$tools/bin/python" -m pip install --quiet pip-tools

compile() {
    output=$1
    shift
    # No address of an index, no folder of wheels and no option of this machine goes into the files.
    CUSTOM_COMPILE_COMMAND="make lock" "$tools/bin/pip-compile" --quiet --generate-hashes --strip-extras \
        --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
        --output-file="$output" "$@"
    echo "wrote $output: $(grep -c '==' "$output") packages"
}

compile requirements/build.txt "$@" requirements/build.in
compile requirements/runtime.txt "$@" pyproject.toml
compile requirements/kubernetes.txt "$@" --extra kubernetes --constraint requirements/runtime.txt pyproject.toml
# Of the extra alone, for the package healthd-nccl, which stands beside the one with runtime.txt.
"$python" -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["nccl"], sep="\n")' |
    compile requirements/nccl.txt "$@" --constraint requirements/runtime.txt -
compile requirements/dev.txt "$@" --extra dev --extra kubernetes --constraint requirements/kubernetes.txt \
    --constraint requirements/build.txt pyproject.toml
compile requirements/ansible.txt "$@" requirements/ansible.in
