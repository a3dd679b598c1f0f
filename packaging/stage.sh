#!/bin/sh
# Puts what a package of healthd installs below a folder: a CPython with healthd in /opt/healthd, the command, units, hooks.
# Usage: packaging/stage.sh FOLDER. The .deb and the .rpm are made of it (packaging/deb/build.sh, packaging/rpm).
#
# The CPython is the packages' own (packaging/python/build.sh, which needs root once), so that one package fits every
# distribution. ARCH names another processor than this machine's: amd64 or arm64. PYTHON=/usr/bin/python3 stages a venv
# that links to that Python instead: it needs no root, and fits this distribution alone.
# Wheels only, in the versions and with the hashes of requirements/runtime.txt (LOCK names another:
# requirements/kubernetes.txt); where they come from is pip's own configuration.
set -eu
# shellcheck source=packaging/staging.sh
. "$(dirname "$0")/staging.sh"

own='' native='' foreign=''
if test -n "${PYTHON:-}"; then
    python=$PYTHON
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "packaging/stage.sh: $python is not Python 3.11 or newer; set PYTHON=/usr/bin/python3.11" >&2
        exit 1
    }
    # /usr/bin/python3.11 and not python3, which means another version after an upgrade of the distribution.
    python=$("$python" -c 'import sys; print("%s/bin/python%d.%d" % (sys.base_prefix, *sys.version_info[:2]))')
else
    native=$(sh packaging/python/build.sh)
    own=$native
    if test -n "${ARCH:-}"; then own=$(sh packaging/python/build.sh "$ARCH"); fi
    test "$own" = "$native" || foreign=yes
    python=$native/bin/python3
fi

# Only what the wheel is made of: a build/ left in the checkout would bring deleted modules back.
mkdir "$work/src"
cp -R LICENSE README.md pyproject.toml checks remediation healthd "$work/src/"
mkdir "$work/src/packaging"
cp -R packaging/bin "$work/src/packaging/bin"

make_tools
"$pip" install --quiet --no-compile --require-hashes --only-binary :all: -r requirements/build.txt
"$pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$work/wheel" "$work/src"

rm -rf "$opt"
platform=
if test -n "$own"; then
    install -d "$dest/opt" "$dest/usr/share/doc/healthd"
    cp -a "$own" "$opt"
    # Bytecode that this folder's own runs left there: it would stay, for compileall below takes it for current.
    find "$opt" -name __pycache__ -prune -exec rm -rf {} +
    # What brings pip in, and what made this folder's tools of it.
    rm -rf "$opt"/lib/python3*/ensurepip "$opt"/lib/python3*/venv
    rm -rf "$dest/usr/share/doc/healthd/python"
    mv "$opt/doc" "$dest/usr/share/doc/healthd/python"
    platform=$(for_own_python)
else
    "$python" -m venv --without-pip "$opt"
fi
site=$(echo "$opt"/lib/python3*/site-packages)
install_wheels --require-hashes --only-binary :all: -r "${LOCK:-requirements/runtime.txt}"
install_wheels --no-deps "$work"/wheel/*.whl
# 16 MB of AWS services that healthd has no call to.
"$work/tools/bin/python" packaging/trim_botocore.py "$site"

# Of the programs only ours stays.
find "$opt/bin" -mindepth 1 ! -name 'python*' -exec rm -rf {} +
sed '1s|^#!.*|#!/opt/healthd/bin/python|' packaging/bin/healthd >"$opt/bin/healthd"
chmod 755 "$opt/bin/healthd"
# What venv and pip wrote of this folder becomes what it is once installed.
test ! -e "$opt/pyvenv.cfg" || sed -i "/^command = /d" "$opt/pyvenv.cfg"
rm -f "$opt/.gitignore" # Python 3.13 leaves one
rm -f "$site"/healthd-*.dist-info/direct_url.json
correct_records
compile_modules

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
# healthd itself writes its manual: where its CPython does not run, on this machine's.
runs=$opt/bin/python
if test -n "$foreign"; then
    "$pip" install --quiet --require-hashes --only-binary :all: -r requirements/runtime.txt
    "$pip" install --quiet --no-deps "$work"/wheel/*.whl
    runs=$work/tools/bin/python
fi
"$runs" -B packaging/manual/manual.py "$dest/usr/share"
settle
