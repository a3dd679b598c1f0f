#!/bin/sh
# Puts what a package of healthd installs below a folder: its own venv in /opt/healthd, the command, units and hooks.
# Usage: packaging/stage.sh FOLDER. The .deb and the .rpm are made of it (packaging/deb/build.sh, packaging/rpm).
#
# The venv belongs to one minor version of Python, so it is made where it will run: on the same distribution, with the
# Python that PYTHON names (/usr/bin/python3 by itself; Amazon Linux 2023: /usr/bin/python3.11). Wheels only, in the
# versions and with the hashes of requirements/runtime.txt (LOCK names another: requirements/kubernetes.txt); where they
# come from is pip's own configuration. Needs no root.
set -eu
test $# -eq 1 || { sed -n '3p' "$0" >&2; exit 64; }
mkdir -p "$1"
dest=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "packaging/stage.sh: $python is not Python 3.11 or newer; set PYTHON=/usr/bin/python3.11" >&2
    exit 1
}
# /usr/bin/python3.11 and not python3, which means another version after an upgrade of the distribution.
python=$("$python" -c 'import sys; print("%s/bin/python%d.%d" % (sys.base_prefix, *sys.version_info[:2]))')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
export PIP_DISABLE_PIP_VERSION_CHECK=1

# Only what the wheel is made of: a build/ left in the checkout would bring deleted modules back.
mkdir "$work/src"
cp -R LICENSE README.md pyproject.toml checks remediation healthd "$work/src/"
mkdir "$work/src/packaging"
cp -R packaging/bin "$work/src/packaging/bin"

"$python" -m venv "$work/tools" || {
    echo "packaging/stage.sh: $python cannot make virtual environments; install python3-venv (Debian, Ubuntu)" >&2
    exit 1
}
pip=$work/tools/bin/pip
"$pip" install --quiet --no-compile --require-hashes --only-binary :all: -r requirements/build.txt
"$pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$work/wheel" "$work/src"

venv=$dest/opt/healthd
"$python" -m venv --without-pip --clear "$venv"
"$pip" --python "$venv/bin/python" install --quiet --no-compile --require-hashes --only-binary :all: \
    -r "${LOCK:-requirements/runtime.txt}"
"$pip" --python "$venv/bin/python" install --quiet --no-compile --no-deps "$work"/wheel/*.whl
# 16 MB of AWS services that healthd has no call to.
"$venv/bin/python" packaging/trim_botocore.py "$(echo "$venv"/lib/python3*/site-packages)"

# What venv and pip wrote of this folder becomes what it is once installed. Of the programs only ours stays.
find "$venv/bin" -mindepth 1 ! -name 'python*' ! -name healthd -exec rm -rf {} +
sed -i "1s|^#!.*|#!/opt/healthd/bin/python|" "$venv/bin/healthd"
sed -i "/^command = /d" "$venv/pyvenv.cfg"
rm -f "$venv/.gitignore" # Python 3.13 leaves one
# pip records the folder that our wheel lay in, and checksums of programs that name the folder of this staging.
rm -f "$venv"/lib/python3*/site-packages/healthd-*.dist-info/direct_url.json
sed -i -e '/direct_url\.json,/d' -e '\|^\.\./\.\./\.\./bin/|d' "$venv"/lib/python3*/site-packages/*.dist-info/RECORD

# Bytecode that is never compared with its source: a package manager's files do not change, each start saves the
# comparison, and only the package manager writes below /opt/healthd.
"$venv/bin/python" -m compileall -q -j 0 -s "$dest" --invalidation-mode unchecked-hash "$venv/lib"
if grep -rlF "$dest" "$venv" >&2; then
    echo "packaging/stage.sh: the files above still name $dest, which is not there once installed" >&2
    exit 1
fi

install -d "$dest/usr/bin" "$dest/usr/lib/systemd/system" "$dest/usr/lib/healthd/slurm" "$dest/usr/share/doc/healthd"
ln -sfn /opt/healthd/bin/healthd "$dest/usr/bin/healthd"
install -m 644 packaging/systemd/healthd.service packaging/systemd/healthd-controller.service \
    packaging/systemd/healthd.slice "$dest/usr/lib/systemd/system/"
install -m 755 packaging/slurm/*.sh "$dest/usr/lib/healthd/slurm/"
install -m 644 LICENSE CHANGELOG.md "$dest/usr/share/doc/healthd/"
install -m 644 packaging/slurm/README.md "$dest/usr/share/doc/healthd/slurm-hooks.md"
cp -R packaging/iam "$dest/usr/share/doc/healthd/iam"
mkdir -p "$dest/usr/share/doc/healthd/how-to"
install -m 644 docs/how-to/*.md "$dest/usr/share/doc/healthd/how-to/"
"$venv/bin/python" -B packaging/manual/manual.py "$dest/usr/share"
chmod -R u=rwX,go=rX "$dest"
