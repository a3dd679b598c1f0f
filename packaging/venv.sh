#!/bin/sh
# Makes .venv, with nothing but a Python >= 3.11 on the machine.
#   packaging/venv.sh python    print the Python that is used: $PYTHON, else the first of python3, python3.x that fits
#   packaging/venv.sh runtime   .venv with healthd (editable) and what it needs to run
#   packaging/venv.sh dev       the same, and what the tests and checks need
# Versions and hashes come from requirements/; where packages come from is pip's own configuration.
set -eu
cd "$(dirname "$0")/.."

fits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if command -v "$candidate" >/dev/null && fits "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    echo "healthd needs Python 3.11 or newer; found none (looked for: ${PYTHON:-python3, python3.11 to python3.14})." >&2
    echo "Install one (Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv) or set PYTHON=/path/to/python3." >&2
    return 1
}

# Debian and Ubuntu keep ensurepip, without which there is no venv, in a package of its own.
need_ensurepip() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        echo "$1 cannot make virtual environments; installing $package"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
        return
    fi
    echo "$1 cannot make virtual environments. Install the package $package (as root: apt-get install $package)," >&2
    echo "then run the same command again." >&2
    return 1
}

make_venv() {
    python=$(find_python)
    need_ensurepip "$python"
    # A folder copied from elsewhere, or whose Python is gone, is made again.
    here=$(.venv/bin/python -c 'import sys; print(sys.prefix)' 2>/dev/null || true)
    if [ "$here" != "$PWD/.venv" ] || ! fits .venv/bin/python; then
        rm -rf .venv
        "$python" -m venv .venv
    fi
}

install() {
    pip="env PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip"
    $pip install --quiet --no-compile --require-hashes -r requirements/build.txt -r "requirements/$1.txt"
    # pip does it on one core; some packages bring files for other versions of Python, which do not compile.
    .venv/bin/python -m compileall -qq -j 0 .venv/lib/python3*/site-packages || true
    # By its path alone: the finder that setuptools installs otherwise costs every process 30 ms, and tests start thousands.
    $pip install --quiet --no-build-isolation --no-deps --config-settings editable_mode=compat --editable .
}

case ${1:-} in
python) find_python ;;
runtime | dev)
    make_venv
    install "$1"
    ;;
*)
    sed -n '2,6p' "$0" >&2
    exit 64
    ;;
esac
